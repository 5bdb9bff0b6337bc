"""The shared-prefix workload for a server whose pools are what they are.

Phases, each ending before the next: warm (prefix + a); flood with unrelated prompts, more tokens
than the device holds; create (the request that leaves a state at the prefix's end: prefix + b where
states are kept at branching points, the bare prefix where only at the ends of prompts); flood
again; measure (prefix + c). Sentinels prove that each flood and the host pool were large enough,
see `hicache_bench.workload`. The cache is not emptied unless asked to: prompts are drawn from a
seed that is new in each run, so that nothing of them can be there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hicache_bench.client import Answer, Engine
from hicache_bench.errors import UsageError
from hicache_bench.url.facts import Facts

# sglang loads a host hit back only from 10 tokens on (UnifiedRadixCache.load_back_threshold).
_LEAST = 16
# Ids at the low end are special tokens in the models that this is for.
_FIRST_ID = 100
# Every hybrid model that sglang serves knows at least this many token ids.
DEFAULT_VOCAB = 32_000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """What a run sends; tokens, but for counts. repeats: times that the policy needs a prompt."""

    families: int
    prefix: int
    suffix: int
    flood_prompts: int
    flood_length: int
    sentinel: int
    repeats: int
    branches: bool
    vocab: int
    seed: int
    new_tokens: int = 4
    cold: bool = False

    @property
    def prompt(self) -> int:
        """Tokens of prefix + suffix."""
        return self.prefix + self.suffix

    @property
    def requests(self) -> int:
        """Requests of the whole run."""
        family = self.repeats + 2 + int(self.cold)
        return self.families * family + 2 * self.flood_prompts + 3 * (self.repeats + 1)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; what the server computes is at most that."""
        create = self.prompt if self.branches else self.prefix
        family = (self.repeats + 1 + int(self.cold)) * self.prompt + create
        sentinels = 3 * (self.repeats + 2) * self.sentinel
        return self.families * family + 2 * self.flood_prompts * self.flood_length + sentinels

    @property
    def host_tokens(self) -> int:
        """Most tokens that the run writes to the host: prompts and what was generated."""
        family = self.prefix + 3 * (self.suffix + self.new_tokens)
        return (
            self.families * family
            + 2 * self.flood_prompts * (self.flood_length + 1)
            + (9 * self.sentinel)
        )

    @property
    def host_states(self) -> int:
        """Most states that the run leaves on the host: two for each request."""
        return 2 * self.requests


def plan(
    facts: Facts,
    *,
    families: int,
    prefix: int,
    suffix: int,
    vocab: int | None,
    seed: int,
    cold: bool,
) -> Plan:
    """Fit the workload to the server. Raises UsageError where a number makes no workload."""
    again = "type: python -m hicache_bench server --help"
    least = max(_LEAST, facts.step)
    for option, value, bound in (
        ("--families", families, 1),
        ("--prefix", prefix, least),
        ("--suffix", suffix, 2),
    ):
        if value < bound:
            raise UsageError(f"{option} {value}: expected at least {bound}; {again}")
    if prefix % facts.step:
        raise UsageError(
            f"--prefix {prefix}: this server keeps states at multiples of {facts.step} tokens; "
            f"type: --prefix {prefix // facts.step * facts.step}"
        )
    length = min(prefix + suffix, facts.max_input - 8)
    made = Plan(
        families=families,
        prefix=prefix,
        suffix=suffix,
        flood_prompts=_flood_prompts(facts, length),
        flood_length=length,
        sentinel=max(_LEAST, 2 * facts.step) if facts.step > 1 else _LEAST,
        repeats=2 if facts.policy == "write_through_selective" else 1,
        branches=facts.branches,
        vocab=vocab or facts.vocab or DEFAULT_VOCAB,
        seed=seed,
        cold=cold,
    )
    if made.vocab - _FIRST_ID < made.requests + 8:
        raise UsageError(
            f"--vocab {made.vocab}: {made.requests} prompts each begin with a token id of their "
            f"own; expected at least {made.requests + _FIRST_ID + 8}; {again}"
        )
    return made


def _flood_prompts(facts: Facts, length: int) -> int:
    """Enough for a quarter more tokens than the device holds, and for all of its state slots."""
    by_tokens = -(-5 * facts.device_tokens // (4 * max(1, length)))
    # Evicting KV takes the states above it along, so slots matter only where they are few.
    by_states = min((facts.device_states or 0) + 2, 4 * by_tokens)
    return max(by_tokens, by_states)


@dataclass(frozen=True)
class Measured:
    """What a run saw. tiers: tokens on (device, host, storage). cold: same prompts, empty cache."""

    measured: tuple[Answer, ...]
    cold: tuple[Answer, ...]
    created: tuple[Answer, ...]
    probes: tuple[tuple[str, int, tuple[int, int, int]], ...]
    seconds: float
    phase_seconds: dict[str, float]

    def hits(self, prefix: int) -> int:
        """Measured prompts of which the whole prefix was found."""
        return sum(answer.cached >= prefix for answer in self.measured)


class Prompts:
    """Random prompts that share nothing: each begins with a token id that no other begins with."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._random = random.Random(seed)
        self._ids = range(_FIRST_ID, vocab)
        self._first: Iterator[int] = iter(self._random.sample(self._ids, len(self._ids)))

    def fresh(self, length: int) -> list[int]:
        """A prompt, or a suffix: also these begin with an id of their own, so that they part."""
        return [next(self._first), *self._random.choices(self._ids, k=length - 1)]


class Run:
    """One run. engines: one for each request that may be in flight; rate: requests a second."""

    def __init__(
        self,
        engines: Sequence[Engine],
        made: Plan,
        rate: float | None = None,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        self._engines = list(engines)
        self._plan = made
        self._progress = progress
        self._gap = 1.0 / rate if rate else 0.0
        self._next = 0.0
        self._done = 0
        self._lock = threading.Lock()
        self._prompts = Prompts(made.seed, made.vocab)
        self._seconds: dict[str, float] = {}

    def run(self) -> Measured:
        """All phases. Raises what the engine raises."""
        made, prompts = self._plan, self._prompts
        began = time.monotonic()
        prefixes = [prompts.fresh(made.prefix) for _ in range(made.families)]
        last = [prefix + prompts.fresh(made.suffix) for prefix in prefixes]
        cold: list[Answer] = []
        if made.cold:
            self._engines[0].flush()
            cold = self._phase("cold", last, made.new_tokens)
            self._engines[0].flush()
        oldest = self._sentinel()
        for _ in range(made.repeats):
            warm = [prefix + prompts.fresh(made.suffix) for prefix in prefixes]
            self._phase("warm", warm)
        before_first = self._sentinel()
        self._flood("flood")
        probes = [self._probe("first flood", before_first)]
        if made.branches:
            create = [prefix + prompts.fresh(made.suffix) for prefix in prefixes]
        else:
            create = prefixes
        created = self._phase("create", create)
        before_second = self._sentinel()
        self._flood("flood again")
        probes.append(self._probe("second flood", before_second))
        measured = self._phase("measure", last, made.new_tokens)
        probes.append(self._probe("host pool", oldest))
        return Measured(
            tuple(measured),
            tuple(cold),
            tuple(created),
            tuple(probes),
            time.monotonic() - began,
            dict(self._seconds),
        )

    def _flood(self, phase: str) -> None:
        made = self._plan
        self._phase(
            phase, [self._prompts.fresh(made.flood_length) for _ in range(made.flood_prompts)]
        )

    def _sentinel(self) -> list[int]:
        ids = self._prompts.fresh(self._plan.sentinel)
        for _ in range(self._plan.repeats):
            self._phase("sentinel", [ids])
        return ids

    def _probe(self, name: str, sentinel: list[int]) -> tuple[str, int, tuple[int, int, int]]:
        # A whole prompt is never served from the cache, its last token is computed.
        longer = [*sentinel, *self._prompts.fresh(max(4, self._plan.sentinel // 2))]
        return name, len(sentinel), self._phase("probe", [longer])[0].tiers

    def _phase(self, phase: str, prompts: Sequence[Sequence[int]], new: int = 1) -> list[Answer]:
        """Send the prompts, as many at a time as there are engines; answers in their order."""
        began = time.monotonic()
        free = list(self._engines)

        def send(ids: Sequence[int]) -> Answer:
            with self._lock:
                engine = free.pop()
            self._wait()
            answer = engine.generate(ids, new)
            with self._lock:
                free.append(engine)
                self._done += 1
                self._progress(phase, self._done, self._plan.requests)
            return answer

        with ThreadPoolExecutor(max_workers=len(self._engines)) as pool:
            futures = [pool.submit(send, ids) for ids in prompts]
            try:
                answers = [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.monotonic() - began
        return answers

    def _wait(self) -> None:
        """Keep the distance between two requests that the rate asks for."""
        if not self._gap:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._gap
        time.sleep(max(0.0, start - now))
