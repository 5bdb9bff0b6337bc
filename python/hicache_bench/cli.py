"""Command line: the workloads on real servers, several trees side by side."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from hicache_bench import launch, models, options, plan, plot, report, runner, trees, workload
from hicache_bench.cli_common import check_outputs, default_out, resolve_trees
from hicache_bench.errors import BenchError, UsageError
from hicache_bench.progress import Reporter
from hicache_bench.results import Row, failed_expectations
from hicache_bench.workloads import check_policies
from hicache_bench.workloads import chosen as chosen_workloads

SUBCOMMANDS = {
    "cache": "hicache_bench.cache.cli",
    "server": "hicache_bench.url.cli",
    "readme": "hicache_bench.readme",
}
"""Module of each subcommand; without one, the workloads run on servers of our own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _signals():
            if words and words[0] in SUBCOMMANDS:
                return _subcommand(words[0], words[1:])
            chosen = options.parser().parse_args(words)
            launch.hide_gpus(os.environ)
            return _servers(chosen)
    except BenchError as error:
        print(f"hicache_bench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "hicache_bench: interrupted; every server of this run has been ended", file=sys.stderr
        )
        return 1


def _subcommand(name: str, words: list[str]) -> int:
    """Run one of SUBCOMMANDS; each is imported when it is asked for."""
    if name == "cache":
        launch.hide_gpus(os.environ)
    module = importlib.import_module(SUBCOMMANDS[name])
    status: int = module.main(words)
    return status


def _servers(chosen: argparse.Namespace) -> int:
    shape = workload.Shape(chosen.families, chosen.prefix, chosen.suffix)
    workload.check_shape(shape)
    policies = check_policies(chosen.policy)
    workloads = chosen_workloads(chosen.workload, policies)
    specs = trees.parse_all(chosen.trees or plan.TREES)
    if chosen.jobs < 1:
        raise UsageError(
            f"--jobs {chosen.jobs}: expected at least 1; type: python -m hicache_bench --jobs 1"
        )
    _check_model(chosen.model)
    out: Path = (chosen.out or default_out()).resolve()
    check_outputs(*_results(chosen, out))
    settings = runner.Settings(shape, out / "logs", chosen.jobs)
    with Reporter() as reporter:
        checkpoints = _checkpoints(chosen.model, out / "models", shape, reporter)
        found = resolve_trees(specs, reporter)
        jobs = plan.jobs(checkpoints, found, policies, workloads)
        result = runner.run(jobs, settings, reporter)
    _show(result.rows, chosen, out)
    failed = [line for row in result.rows for line in failed_expectations(row)]
    for line in failed:
        print(f"hicache_bench: not as expected: {line}", file=sys.stderr)
    for log in result.logs:
        if failed or chosen.keep_logs:
            print(f"log: {log}", file=sys.stderr)
        else:
            log.unlink(missing_ok=True)
    return 1 if failed else 0


def _check_model(model: str) -> None:
    """Refuse a wrong name before torch is imported for the right ones."""
    if model != "both" and model not in models.names() and not Path(model).is_dir():
        raise UsageError(
            f"--model {model}: expected {', '.join(models.names())}, both, or a folder with a "
            "checkpoint; type: python -m hicache_bench --model lfm2"
        )


def _checkpoints(
    model: str, folder: Path, shape: workload.Shape, reporter: Reporter
) -> list[models.Checkpoint]:
    found = []
    for name in models.names() if model == "both" else (model,):
        if name in models.names():
            reporter.say(f"{name}: checkpoint")
            checkpoint = models.make(name, folder)
        else:
            checkpoint = models.load(Path(name).resolve())
        workload.check(shape, checkpoint)
        found.append(checkpoint)
    return found


def _results(chosen: argparse.Namespace, out: Path) -> tuple[Path, Path]:
    """Where JSON and plot go. JSON on standard output is written to its file as well."""
    named = chosen.json and chosen.json != "-"
    json_path = Path(chosen.json) if named else out / "shared_prefix.json"
    return json_path, chosen.plot or out / "shared_prefix.png"


def _show(rows: Sequence[Row], chosen: argparse.Namespace, out: Path) -> None:
    """Print the table, write JSON and plot. JSON on standard output sends the table to stderr."""
    to_stdout = chosen.json == "-"
    stream = sys.stderr if to_stdout else sys.stdout
    json_path, plot_path = _results(chosen, out)
    shape = rows[0].measurement.shape
    recorded = {
        **asdict(shape),
        "model": chosen.model,
        "policy": chosen.policy,
        "workload": chosen.workload,
        "trees": list(chosen.trees or plan.TREES),
    }
    value = report.document(rows, recorded)
    print(report.title(shape), file=stream)
    report.print_table(rows, stream)
    report.print_copied(rows, stream)
    try:
        report.write_json(value, json_path)
        plot.write(rows, plot_path)
    except OSError as error:
        raise BenchError(
            f"the result could not be written: {error}; expected a folder that can be written; "
            "type: python -m hicache_bench --out /tmp/bench"
        ) from error
    print(f"JSON: {json_path}\nplot: {plot_path}", file=stream)
    if to_stdout:
        print(json.dumps(value, indent=2))


@contextmanager
def _signals() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt.

    More of them are ignored while the servers are ended, which must not be cut short.
    """
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in wanted:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in wanted}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
