"""``python -m hicache_bench server``."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hicache_bench.client import Client
from hicache_bench.errors import BenchError, UsageError
from hicache_bench.progress import Reporter
from hicache_bench.report import write_json
from hicache_bench.url import advice, facts, plot, report, workload

_DESCRIPTION = """\
Send the shared-prefix workload to a server that you launched, with any hybrid model, and say how
many prefixes its hierarchical cache finds again after they have left the device. What in the launch
flags would make the result worthless is said before anything is sent, and so is how long it takes.
Nothing is emptied unless --flush is given; other traffic at the same time spoils the figures."""

_EPILOG = """\
examples:
  python -m hicache_bench server --url http://127.0.0.1:30000 --estimate
  python -m hicache_bench server --url http://127.0.0.1:30000 --name before --json before.json
  python -m hicache_bench server --url http://127.0.0.1:30000 --concurrency 8 --rate 4
  python -m hicache_bench server --compare before.json after.json --plot hits.png

launch it with, for example:
  python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache \\
    --hicache-ratio 4 --hicache-write-policy write_through --hicache-io-backend direct \\
    --hicache-mem-layout page_first_direct --enable-cache-report

exit status: 0 measured, or compared; 1 the server stands in the way, or the figures mean nothing;
2 wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The options of `server`."""
    made = argparse.ArgumentParser(
        prog="python -m hicache_bench server",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--url",
        metavar="URL",
        help="the server; example: --url http://127.0.0.1:30000",
    )
    what.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="show results of earlier runs beside each other; "
        "example: --compare before.json after.json",
    )
    numbers: tuple[tuple[str, int | None, str, str], ...] = (
        ("--families", 10, "shared prefixes; default: 10", "20"),
        ("--prefix", 6_400, "tokens of a prefix; default: 6400", "1280"),
        ("--suffix", 3_600, "tokens of what follows it; default: 3600", "720"),
        ("--concurrency", 1, "requests in flight; default: 1", "8"),
        ("--vocab", None, "token ids; default: the model's, or 32000 where it is far", "65536"),
        ("--seed", None, "of the prompts; default: a new one for each run", "7"),
    )
    for option, default, text, example in numbers:
        made.add_argument(
            option,
            type=int,
            default=default,
            metavar="N",
            help=f"{text}; example: {option} {example}",
        )
    made.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="most requests a second; default: no limit; example: --rate 4",
    )
    made.add_argument(
        "--flush",
        action="store_true",
        help="empty the cache, first and after a cold run whose logprobs the measured ones are "
        "compared with; example: --flush",
    )
    made.add_argument(
        "--anyway",
        action="store_true",
        help="run although the server stands in the way; example: --anyway",
    )
    made.add_argument(
        "--estimate",
        action="store_true",
        help="say what would be sent and how long it takes, and stop; example: --estimate",
    )
    made.add_argument(
        "--api-key", metavar="KEY", help="the server's --api-key; example: --api-key secret"
    )
    made.add_argument(
        "--name", metavar="NAME", help="of this run in tables; example: --name 'with core'"
    )
    made.add_argument(
        "--json",
        metavar="FILE",
        help="the result as JSON, - for standard output; example: --json before.json",
    )
    made.add_argument(
        "--plot", type=Path, metavar="FILE", help="the result as a PNG; example: --plot hits.png"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Run `server`. Returns the exit status; raises BenchError."""
    chosen = parser().parse_args(argv)
    if chosen.compare:
        values = [report.load(path) for path in chosen.compare]
        for line in report.differences(values):
            print(f"note: {line}", file=sys.stderr)
        _show(values, chosen)
        return 1 if any(value["failed_expectations"] for value in values) else 0
    _check(chosen)
    headers = {"Authorization": f"Bearer {chosen.api_key}"} if chosen.api_key else {}
    found = facts.fetch(chosen.url.rstrip("/"), headers)
    made = _plan(chosen, found)
    notes = [*advice.flags(found), *advice.sizes(found, made, chosen.concurrency)]
    if _stop(notes, chosen.anyway):
        return 1
    clients = [Client(found.url, headers=headers) for _ in range(chosen.concurrency)]
    try:
        seconds = _estimate(clients[0], made, chosen.rate)
        print(
            f"{made.requests} requests, {made.prompt_tokens:,} prompt tokens, about "
            f"{_duration(seconds)}",
            file=sys.stderr,
        )
        if chosen.estimate:
            return 0
        with Reporter() as reporter:
            measured = workload.Run(
                clients,
                made,
                chosen.rate,
                lambda phase, done, total: reporter.step("server", phase, done, total),
            ).run()
    finally:
        for client in clients:
            client.close()
    value = report.document(chosen.name or found.url, found, made, notes, measured)
    _show([value], chosen)
    for line in value["failed_expectations"]:
        print(f"hicache_bench: not as expected: {line}", file=sys.stderr)
    return 1 if value["failed_expectations"] else 0


def _check(chosen: argparse.Namespace) -> None:
    again = "type: python -m hicache_bench server --help"
    parts = urlsplit(chosen.url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(
            f"--url {chosen.url}: expected http://HOST:PORT; type: "
            "python -m hicache_bench server --url http://127.0.0.1:30000"
        )
    if chosen.concurrency < 1:
        raise UsageError(f"--concurrency {chosen.concurrency}: expected at least 1; {again}")
    if chosen.rate is not None and chosen.rate <= 0:
        raise UsageError(f"--rate {chosen.rate}: expected more than 0; {again}")


def _plan(chosen: argparse.Namespace, found: facts.Facts) -> workload.Plan:
    # A seed of an earlier run would find that run's prompts.
    seed = secrets.randbelow(1 << 31) if chosen.seed is None else chosen.seed
    return workload.plan(
        found,
        families=chosen.families,
        prefix=chosen.prefix,
        suffix=chosen.suffix,
        vocab=chosen.vocab,
        seed=seed,
        cold=chosen.flush,
    )


def _stop(notes: Sequence[advice.Advice], anyway: bool) -> bool:
    """Say what was noticed; whether that ends the run."""
    for note in notes:
        print(f"{'the server' if note.refuse else 'note'}: {note}", file=sys.stderr)
    if not any(note.refuse for note in notes) or anyway:
        return False
    print(
        "hicache_bench: nothing was sent: the result would mean nothing; launch the server as said "
        "above and type the same again (--anyway to send it all the same)",
        file=sys.stderr,
    )
    return True


def _estimate(client: Client, made: workload.Plan, rate: float | None) -> float:
    """Seconds that the run will take, from one prompt that is sent and timed."""
    # Also where the run's seed was given: this prompt must not be one of its own.
    probe = workload.Prompts(made.seed + 1, made.vocab).fresh(made.flood_length)
    began = time.monotonic()
    client.generate(probe, 1)
    each = (time.monotonic() - began) / len(probe)
    busy = made.prompt_tokens * each
    return max(busy, made.requests / rate) if rate else busy


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _show(values: Sequence[dict[str, Any]], chosen: argparse.Namespace) -> None:
    """Print the table, write what was asked for."""
    to_stdout = chosen.json == "-"
    stream = sys.stderr if to_stdout else sys.stdout
    print(report.title(values[0]), file=stream)
    report.print_table(values, stream)
    value: Any = values[0] if len(values) == 1 else {"runs": list(values)}
    try:
        if chosen.json and not to_stdout:
            write_json(value, Path(chosen.json))
            print(f"JSON: {chosen.json}", file=stream)
        if chosen.plot:
            plot.write(values, chosen.plot)
            print(f"plot: {chosen.plot}", file=stream)
    except OSError as error:
        raise BenchError(
            f"the result could not be written: {error}; expected a folder that can be written"
        ) from error
    if to_stdout:
        print(json.dumps(value, indent=2))
