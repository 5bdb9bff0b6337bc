"""A worker process as an object: one source tree, one command at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import sglang_cpu
from hicache_bench.errors import BenchError
from hicache_bench.server import tail


class Process:
    """One worker; a context manager. On leaving, the process is killed: it holds nothing of value.

    log: takes what sglang prints.
    """

    def __init__(
        self, name: str, tree: Path, log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        base = {
            **(os.environ if environ is None else environ),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hicache_bench.cache.worker"],
                env=_with_ourselves(sglang_cpu.environment(tree, base)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for us, who end it
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def do(self, command: str, **arguments: Any) -> Any:
        """Send one command and wait for its result. Raises BenchError where there is none."""
        self.send(command, **arguments)
        return self.receive()

    def send(self, command: str, **arguments: Any) -> None:
        """Send one command; `receive` must follow."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive says why
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()

    def receive(self) -> Any:
        """Wait for the result of what was sent. Raises BenchError where there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise BenchError(
                f"{self.name}: the replay ended with status {status}\nthe last lines of its log:\n"
                f"{tail(self.log)}\nthe whole log: {self.log}"
            )
        reply = json.loads(line)
        if "error" in reply:
            with self.log.open("a", encoding="utf-8") as sink:
                sink.write(reply.get("traceback", ""))
            raise BenchError(f"{self.name}: {reply['error']}\nthe whole log: {self.log}")
        return reply["ok"]

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _with_ourselves(environ: dict[str, str]) -> dict[str, str]:
    """Let the worker import this package also where it is found some other way than PYTHONPATH."""
    ours = str(Path(__file__).resolve().parents[2])
    folders = environ["PYTHONPATH"].split(os.pathsep)
    if ours not in folders:
        folders.append(ours)
    return {**environ, "PYTHONPATH": os.pathsep.join(folders)}
