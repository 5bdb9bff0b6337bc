"""Runs the jobs of a plan, a real server each, a few at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import sglang_cpu
from hicache_bench import launch
from hicache_bench.client import Client
from hicache_bench.copied import Watch
from hicache_bench.errors import BenchError, Cancelled, NoAnswer, UsageError
from hicache_bench.plan import Job
from hicache_bench.progress import Reporter
from hicache_bench.results import Row
from hicache_bench.server import Server, Servers
from hicache_bench.shared_prefix import SharedPrefix
from hicache_bench.workload import Shape, sizes_for
from hicache_bench.workloads import WORKLOADS, Workload

# A start takes 20 s of a free core. The limit is for one that hangs, a dead one is noticed at once:
# with a load of 28 on two cores, eight minutes were not enough.
START_TIMEOUT_S = 900.0
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What all servers of a run have in common.

    logs: folder for the servers' logs. jobs: servers at a time.
    """

    shape: Shape
    logs: Path
    jobs: int = 2


@dataclass
class Result:
    """Rows by checkpoint, workload, policy and tree, and the log of every server that was
    started.
    """

    rows: list[Row] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


def run(jobs: Sequence[Job], settings: Settings, reporter: Reporter) -> Result:
    """Run all jobs. On any error, and on Ctrl-C, servers are ended first.

    Raises BenchError, with the tail of the server's log where a server is to blame.
    """
    result = Result()
    with Servers() as servers:
        runs = [_Run(job, settings, servers, reporter, result.logs.append) for job in jobs]
        rows = _all([each.measure for each in runs], settings.jobs, servers)
    result.rows = side_by_side(jobs, [row for some in rows for row in some])
    return result


def side_by_side(jobs: Sequence[Job], rows: Sequence[Row]) -> list[Row]:
    """The rows ordered by checkpoint, workload and policy, so that trees stand side by side."""
    models = list(dict.fromkeys(job.checkpoint.name for job in jobs))
    policies = list(dict.fromkeys(job.policy for job in jobs))

    def place(row: Row) -> tuple[int, int, int]:
        workload = WORKLOADS.index(row.workload)
        return models.index(row.model), workload, policies.index(row.policy)

    return sorted(rows, key=place)  # stable: trees stay in the order of the jobs


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
class _Run:
    """One job under way. started: called with the log of the server."""

    job: Job
    settings: Settings
    servers: Servers
    reporter: Reporter
    started: Callable[[Path], None]

    def measure(self) -> list[Row]:
        """Start the server, run the workloads, end the server."""
        with tempfile.TemporaryDirectory(prefix="hicache-copied-") as copied:
            return self._measure(Path(copied))

    def _measure(self, copied: Path) -> list[Row]:
        """What `measure` does. copied: an empty folder, where the server counts its copies."""
        began = time.monotonic()
        job = self.job
        self.reporter.step(job.name, "server starts")
        server = self.servers.start(
            launch.spec(
                job.name,
                job.checkpoint,
                job.tree.path,
                shape=self.settings.shape,
                policy=job.policy,
                logs=self.settings.logs,
                environ=(*job.tree.environ, (sglang_cpu.COPIED, str(copied))),
            )
        )
        self.started(server.log)
        try:
            server.wait_ready(START_TIMEOUT_S)
            rows = self._drive(server, copied, time.monotonic() - began)
        finally:
            self.servers.stop(server)
        self.reporter.step(job.name, "done", 1, 1)
        return rows

    def _drive(self, server: Server, copied: Path, start_seconds: float) -> list[Row]:
        """What the workloads measured on the ready server."""
        client = Client(server.url)
        try:
            version = self._checked_version(client)
            watch = Watch(copied, client.server_info)
            watch.taken()  # what the start copied is no workload's
            return [
                self._row(client, workload, watch, version, start_seconds)
                for workload in self.job.workloads
            ]
        except UsageError:
            raise
        except BenchError as error:
            # The end of the process explains more than the broken connection does, but comes
            # seconds later.
            server.check(grace_s=10.0 if isinstance(error, NoAnswer) else 0.0)
            raise server.failed(str(error)) from error
        finally:
            client.close()

    def _row(
        self,
        client: Client,
        workload: Workload,
        watch: Watch,
        version: str,
        start_seconds: float,
    ) -> Row:
        began = time.monotonic()
        job, shape = self.job, self.settings.shape
        run = SharedPrefix(
            client,
            workload,
            shape,
            sizes_for(shape, job.policy),
            job.checkpoint.vocab_size,
            progress=lambda _, done, total: self.reporter.step(
                job.name, workload.label, done, total
            ),
        )
        measurement = run.run()
        run_seconds = time.monotonic() - began
        return Row(
            model=job.checkpoint.name,
            tree=job.tree,
            policy=job.policy,
            workload=workload,
            version=version,
            measurement=measurement,
            start_seconds=start_seconds,
            run_seconds=run_seconds,
            copied=watch.taken(),
        )

    def _checked_version(self, client: Client) -> str:
        """The server's version. Raises UsageError when its model keeps no states."""
        info = client.server_info()
        if not info.get("uses_mamba_radix_cache", True):
            raise UsageError(
                f"--model {self.job.checkpoint.path}: not a hybrid model, it keeps no states "
                "beside its KV; expected one such as Qwen3-Next or LFM2; type: "
                "python -m hicache_bench --model both"
            )
        return str(info.get("version", "unknown"))
