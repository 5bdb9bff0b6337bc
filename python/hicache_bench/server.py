"""A server as a process of ours: started apart, watched while it comes up, ended whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

from hicache_bench.errors import BenchError, Cancelled

TAIL_LINES = 30


@dataclass(frozen=True)
class ServerSpec:
    """What it takes to start a server.

    url: where it will listen. log: file that takes its standard output and error.
    """

    name: str
    command: list[str]
    environ: Mapping[str, str]
    url: str
    log: Path


class Server:
    """One running server process and its children; made by `Servers.start`."""

    def __init__(self, spec: ServerSpec, cancelled: threading.Event) -> None:
        self.name = spec.name
        self.url = spec.url
        self.log = spec.log
        self._cancelled = cancelled
        self._children: dict[int, psutil.Process] = {}
        self._stopping = threading.Lock()
        # sglang leaves its sockets' files behind; a short path, since a socket's may have 107
        # bytes.
        self._scratch = tempfile.mkdtemp(prefix="hicache-")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("wb") as sink:
                self._process = subprocess.Popen(
                    spec.command,
                    env={**spec.environ, "TMPDIR": self._scratch},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    # Away from the terminal's Ctrl-C: the server is ended by stop(), and its
                    # children with it.
                    start_new_session=True,
                )
        except OSError:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    @property
    def pid(self) -> int:
        """Process id, also of the process group."""
        return self._process.pid

    def check(self, grace_s: float = 0.0) -> None:
        """Raise Cancelled when the run is over, BenchError with the log's tail on a dead process.

        grace_s: how long to wait for that end. A server that is dying closes its sockets first.
        """
        deadline = time.monotonic() + grace_s
        while True:
            if self._cancelled.is_set():
                raise Cancelled(f"{self.name}: the run was ended")
            if status := self._ended():
                raise self.failed(f"the server ended with {status}")
            if time.monotonic() >= deadline:
                return
            time.sleep(0.1)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until GET /health says 200. Raises BenchError with the log's tail otherwise."""
        deadline = time.monotonic() + timeout_s
        with requests.Session() as session:
            session.trust_env = False
            while True:
                self._note_children()
                self.check()
                with contextlib.suppress(requests.RequestException):
                    if session.get(f"{self.url}/health", timeout=5).status_code == 200:
                        self._note_children()
                        return
                if time.monotonic() > deadline:
                    raise self.failed(f"the server was not ready after {timeout_s:.0f} s")
                time.sleep(0.25)

    def failed(self, what: str) -> BenchError:
        """The error that says what went wrong with this server and shows its log."""
        return BenchError(
            f"{self.name}: {what}\nthe last lines of its log:\n{tail(self.log)}\n"
            f"the whole log: {self.log}"
        )

    def stop(self, grace_s: float = 3.0) -> None:
        """End the process and everything that it started; a second call does nothing.

        The process is killed at once: sglang's polite end takes seconds, and there is nothing to
        save. Its children notice that by themselves and tidy up; what is left of them after
        `grace_s` seconds, in its process group or seen earlier, is killed as well.
        """
        with self._stopping:
            if self._process.returncode is not None:
                return
            self._note_children()
            shared = _shared_memory(self._children.values())
            self._process.kill()
            _until(lambda: not any(map(alive, self._children.values())), grace_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # still ours: its leader is not reaped yet
            for child in self._children.values():
                with contextlib.suppress(psutil.Error):
                    child.kill()  # psutil compares start times: a reused id is not touched
            self._process.wait()
            _until(lambda: not any(map(alive, self._children.values())), grace_s)
            for file in shared:
                file.unlink(missing_ok=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _note_children(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                self._children[child.pid] = child

    def _ended(self) -> str:
        """How the process ended, "" while it runs; left unreaped, so that its id stays ours."""
        if self._process.returncode is not None:
            return "stop()"
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return ""
        if result.si_code == os.CLD_EXITED:
            return f"status {result.si_status}"
        return f"signal {signal.Signals(result.si_status).name}"


class Servers:
    """All servers of one run; a context manager. On leaving, whatever the reason, none is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._running: list[Server] = []

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, spec: ServerSpec) -> Server:
        """Start a server. Raises Cancelled after `close`."""
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled(f"{spec.name}: the run was ended")
            server = Server(spec, self._cancelled)
            self._running.append(server)
            return server

    def stop(self, server: Server) -> None:
        """Stop one server."""
        server.stop()
        with self._lock:
            self._running = [other for other in self._running if other is not server]

    def close(self) -> None:
        """Refuse new servers, cancel the waits for the running ones, and stop them."""
        with self._lock:
            self._cancelled.set()
            running, self._running = self._running, []
        for server in running:
            server.stop()


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, indented."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"    (no log: {error})"
    return "\n".join(f"    {line}" for line in text[-lines:]) or "    (the log is empty)"


def alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that ended and only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for the condition, but no longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _shared_memory(processes: Iterable[psutil.Process]) -> list[Path]:
    """Files of /dev/shm that sglang made for its processes and does not remove."""
    files: set[Path] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for region in process.memory_maps():
                if region.path.startswith("/dev/shm/sglang_"):
                    files.add(Path(region.path))
    return sorted(files)
