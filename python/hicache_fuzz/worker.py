"""The process that runs the cache of one source tree: ``python -m hicache_fuzz.worker OPTIONS``.

`hicache_fuzz.cli` starts it, in the environment of `api.environment`; OPTIONS is one JSON object
with the fields of `Options`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from hicache_fuzz import api, campaign, configs, script
from hicache_fuzz.campaign import Failure


@dataclass(frozen=True)
class Options:
    """What to do. tree: how the user named the tree. keeps: "auto", "yes" or "no"; see
    `machine.machine_for`. out: the folder for scripts of failures.
    """

    tree: str
    configs: tuple[str, ...]
    steps: int
    seed: int
    keeps: str
    out: str
    replay: str | None = None
    command: str = "scripts/fuzz"

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def say(text: str) -> None:
    """Tell the user at once."""
    print(text, flush=True)


class Worker:
    """One run."""

    def __init__(self, options: Options) -> None:
        self._options = options
        api.harness()
        self._keeps = options.keeps == "yes" or (
            options.keeps == "auto" and api.waits_for_transfers()
        )

    def fuzz(self) -> int:
        """Rounds of all configurations in turn, until there were enough steps."""
        options, chosen = self._options, configs.named(self._options.configs)
        asked = "must hold" if self._keeps else "is not asked for, the tree lacks it"
        say(
            f"fuzz: {options.tree}, {len(chosen)} configurations, {options.steps} steps, "
            f"seed {options.seed}; that no state is lost {asked}"
        )
        tally: Counter[str] = Counter()
        started, number = time.monotonic(), 0
        while (left := options.steps - campaign.steps_in(tally)) > 0:
            config, seed = chosen[number % len(chosen)], options.seed + number
            runs = min(campaign.ROUND_RUNS, -(-left // campaign.RUN_STEPS))
            failure = campaign.run(config, seed, runs=runs, keeps_states=self._keeps, tally=tally)
            if failure:
                return self._fail(failure, runs)
            number += 1
            say(
                f"  {campaign.steps_in(tally):>7} steps {time.monotonic() - started:>6.0f} s  "
                f"{config.name}, seed {seed}"
            )
        say("what happened:")
        for what, count in sorted(tally.items()):
            say(f"  {count:>7} {what}")
        say(f"fuzz: {campaign.steps_in(tally)} steps, nothing wrong")
        return 0

    def _fail(self, failure: Failure, runs: int) -> int:
        options, name = self._options, failure.config.name
        path = Path(options.out) / f"{name}-seed{failure.seed}.py"
        script.write(path, failure, self._keeps)
        keeps = "" if options.keeps == "auto" else f" --keeps-states {options.keeps}"
        again = f"{options.command} --tree {options.tree}{keeps}"
        self._tell(failure)
        say(
            f"the same run again:   {again} --config {name} --seed {failure.seed} "
            f"--steps {runs * campaign.RUN_STEPS}\n"
            f"the script alone:     {again} --replay {path}"
        )
        return 1

    def replay(self, path: str) -> int:
        """One script, as it is."""
        read = script.read(Path(path))
        keeps = {"yes": True, "no": False}.get(self._options.keeps, read.keeps_states)
        failure = campaign.replay(read.config, read.lines, keeps)
        if failure is None:
            say(f"replay: {len(read.lines)} operations on {read.config.name}, nothing wrong")
            return 0
        self._tell(failure)
        return 1

    def _tell(self, failure: Failure) -> None:
        say(f"FAILED {failure.config.name}, seed {failure.seed}: {failure.error}")
        for line in failure.script:
            say(f"    {line}")
        for line in failure.trace:
            say(f"  at {line}")


def main(argv: list[str]) -> int:
    """Run; the exit status is 0 where nothing is wrong, and 1 for a failure."""
    given = json.loads(argv[0])
    options = Options(**{**given, "configs": tuple(given["configs"])})
    worker = Worker(options)
    return worker.replay(options.replay) if options.replay else worker.fuzz()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
