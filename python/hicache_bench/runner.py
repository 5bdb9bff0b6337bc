"""Runs the workload on every pair of checkpoint and tree, a real server each, a few at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hicache_bench import launch
from hicache_bench.client import Client
from hicache_bench.errors import BenchError, Cancelled, NoAnswer, UsageError
from hicache_bench.models import Checkpoint
from hicache_bench.progress import Reporter
from hicache_bench.results import Row
from hicache_bench.server import Server, Servers
from hicache_bench.trees import Tree
from hicache_bench.workload import Measurement, Policy, Shape, SharedPrefix, sizes_for

# A start takes 25 s of a free core; on a busy machine four minutes were never reached.
START_TIMEOUT_S = 240.0
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What all servers of a run have in common.

    logs: folder for the servers' logs. jobs: servers at a time.
    """

    shape: Shape
    policy: Policy
    logs: Path
    jobs: int = 2


@dataclass
class Result:
    """Rows in the order asked for, and the log of every server that was started."""

    rows: list[Row] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


def run(
    checkpoints: Sequence[Checkpoint],
    trees: Sequence[Tree],
    settings: Settings,
    reporter: Reporter,
) -> Result:
    """Measure each checkpoint on each tree. On any error, and on Ctrl-C, servers are ended first.

    Raises BenchError, with the tail of the server's log where a server is to blame.
    """
    result = Result()
    with Servers() as servers:
        jobs = [
            _Job(checkpoint, tree, settings, servers, reporter, result.logs.append)
            for checkpoint in checkpoints
            for tree in trees
        ]
        result.rows = _all([job.measure for job in jobs], settings.jobs, servers)
    return result


def _all(work: Sequence[Callable[[], T]], jobs: int, servers: Servers) -> list[T]:
    """Results in order. The first failure ends all servers, so that the other threads end too."""
    pool = ThreadPoolExecutor(max_workers=jobs)
    futures: list[Future[T]] = [pool.submit(one) for one in work]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            error = future.exception() if future.done() else None
            if error and not isinstance(error, Cancelled):
                raise error
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        servers.close()
        pool.shutdown(wait=True)


@dataclass(frozen=True)
class _Job:
    """One checkpoint on one tree. started: called with the log of the server."""

    checkpoint: Checkpoint
    tree: Tree
    settings: Settings
    servers: Servers
    reporter: Reporter
    started: Callable[[Path], None]

    @property
    def _name(self) -> str:
        return f"{self.checkpoint.name}, {self.tree.name}"

    def measure(self) -> Row:
        """Start the server, run the workload, end the server."""
        began = time.monotonic()
        self.reporter.step(self._name, "server starts")
        server = self.servers.start(
            launch.spec(
                self._name,
                self.checkpoint,
                self.tree.path,
                shape=self.settings.shape,
                policy=self.settings.policy,
                logs=self.settings.logs,
                environ=self.tree.environ,
            )
        )
        self.started(server.log)
        try:
            server.wait_ready(START_TIMEOUT_S)
            ready = time.monotonic()
            version, measurement = self._drive(server)
            ended = time.monotonic()
        finally:
            self.servers.stop(server)
        self.reporter.step(self._name, "done", 1, 1)
        return Row(
            model=self.checkpoint.name,
            tree=self.tree,
            policy=self.settings.policy,
            version=version,
            measurement=measurement,
            start_seconds=ready - began,
            run_seconds=ended - ready,
        )

    def _drive(self, server: Server) -> tuple[str, Measurement]:
        """The version of the ready server, and what the workload measured on it."""
        client = Client(server.url)
        shape = self.settings.shape
        try:
            version = self._checked_version(client)
            workload = SharedPrefix(
                client,
                shape,
                sizes_for(shape, self.settings.policy),
                self.checkpoint.vocab_size,
                lambda phase, done, total: self.reporter.step(self._name, phase, done, total),
            )
            return version, workload.run()
        except UsageError:
            raise
        except BenchError as error:
            # The end of the process explains more than the broken connection does, but comes
            # seconds later.
            server.check(grace_s=10.0 if isinstance(error, NoAnswer) else 0.0)
            raise server.failed(str(error)) from error
        finally:
            client.close()

    def _checked_version(self, client: Client) -> str:
        """The server's version. Raises UsageError when its model keeps no states."""
        info = client.server_info()
        if not info.get("uses_mamba_radix_cache", True):
            raise UsageError(
                f"--model {self.checkpoint.path}: not a hybrid model, it keeps no states beside "
                "its KV; expected one such as Qwen3-Next or LFM2; type: "
                "python -m hicache_bench --model both"
            )
        return str(info.get("version", "unknown"))
