"""Real processes: one that dies, one that never answers, and that nothing outlives stop()."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hicache_bench.client import Client
from hicache_bench.errors import BenchError, Cancelled
from hicache_bench.launch import free_port
from hicache_bench.server import Server, Servers, ServerSpec, alive, tail

# Answers /health, writes the ids of its children to a file, and dies of its first request.
SERVER = """
import http.server, os, subprocess, sys
port, pids = sys.argv[1:]
def child(**options):
    return subprocess.Popen(["sleep", "600"], **options)
children = [child(), child(start_new_session=True)]  # the second leaves the process group
orphan = subprocess.check_output(["sh", "-c", "sleep 600 >/dev/null & echo $!"], text=True)
with open(pids + ".new", "w") as file:
    file.write(" ".join(str(process.pid) for process in children) + " " + orphan)
os.rename(pids + ".new", pids)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def do_POST(self):
        print("the pool is out of slots", flush=True)
        for process in children:
            process.kill()
        os._exit(3)
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


class Bench:
    """Starts processes in a folder of its own."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        self.folder = folder
        self.servers = servers
        self.pids = folder / "pids"

    def start(self, script: str = SERVER) -> Server:
        port = free_port()
        source = self.folder / "server.py"
        source.write_text(textwrap.dedent(script))
        return self.servers.start(
            ServerSpec(
                name="toy",
                command=[sys.executable, str(source), str(port), str(self.pids)],
                environ=dict(os.environ),
                url=f"http://127.0.0.1:{port}",
                log=self.folder / "logs" / "toy.log",
            )
        )

    def processes(self, server: Server) -> list[psutil.Process]:
        """The server and its children, taken while they run."""
        children = [psutil.Process(int(pid)) for pid in self.pids.read_text().split()]
        return [psutil.Process(server.pid), *children]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Servers() as servers:
        yield Bench(tmp_path, servers)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(alive(process) for process in processes)


def test_a_server_that_dies_while_starting_shows_its_logs_tail(bench: Bench) -> None:
    server = bench.start(script="print('x\\n' * 50 + 'no such layer'); raise SystemExit(7)")
    with pytest.raises(BenchError) as caught:
        server.wait_ready(timeout_s=60)
    message = str(caught.value)
    assert "toy: the server ended with status 7" in message
    assert "    no such layer\n" in message
    assert message.count("    x\n") == 29  # the last 30 lines, not all
    assert message.endswith(f"the whole log: {server.log}")
    assert "no such layer" in server.log.read_text()


def test_a_server_that_is_killed_names_the_signal(bench: Bench) -> None:
    server = bench.start(script="import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(BenchError, match="ended with signal SIGKILL"):
        server.wait_ready(timeout_s=60)


def test_a_server_that_never_answers_is_given_up(bench: Bench) -> None:
    server = bench.start(script="import time; print('loading', flush=True); time.sleep(600)")
    process = psutil.Process(server.pid)
    with pytest.raises(BenchError, match="was not ready after 0 s"):
        server.wait_ready(timeout_s=0)
    bench.servers.stop(server)
    assert gone([process])


def test_a_server_that_dies_half_way_shows_its_logs_tail(bench: Bench) -> None:
    server = bench.start()
    server.wait_ready(timeout_s=60)
    with pytest.raises(BenchError, match="no answer"):
        Client(server.url).generate([1, 2], 1)
    with pytest.raises(
        BenchError, match=r"ended with status 3\n(.*\n)*    the pool is out of slots"
    ):
        server.check(grace_s=60)


def test_stop_leaves_no_process_and_no_scratch_folder(bench: Bench) -> None:
    server = bench.start()
    server.wait_ready(timeout_s=60)
    processes = bench.processes(server)
    scratch = Path(processes[0].environ()["TMPDIR"])
    assert scratch.is_dir()
    assert [alive(process) for process in processes] == [True] * 4
    server.stop(grace_s=0.2)
    server.stop()
    assert gone(processes)
    assert not scratch.exists()


def test_children_have_time_to_tidy_up_when_the_server_is_gone(bench: Bench) -> None:
    """As multiprocessing's resource tracker does, which removes leaked semaphores."""
    server = bench.start(
        script="""
        import subprocess, sys, time
        tidy = "import pathlib, sys; sys.stdin.read(); pathlib.Path(sys.argv[1]).touch()"
        words = [sys.executable, "-c", tidy, sys.argv[2]]
        child = subprocess.Popen(words, stdin=subprocess.PIPE)
        print("started", flush=True)
        time.sleep(600)
        """
    )
    while "started" not in server.log.read_text():
        server.check(grace_s=0.1)
    server.stop(grace_s=60)
    assert bench.pids.exists()


def test_stop_also_ends_what_a_dead_server_left_behind(bench: Bench) -> None:
    server = bench.start()
    server.wait_ready(timeout_s=60)
    processes = bench.processes(server)
    processes[0].kill()
    with pytest.raises(BenchError, match="SIGKILL"):
        server.check(grace_s=60)
    assert not gone(processes[1:])
    server.stop(grace_s=0.2)
    assert gone(processes)


def test_leaving_the_block_by_an_exception_ends_every_server(tmp_path: Path) -> None:
    seen: list[psutil.Process] = []
    with pytest.raises(KeyboardInterrupt), Servers() as servers:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            bench = Bench(tmp_path / name, servers)
            server = bench.start()
            server.wait_ready(timeout_s=60)
            seen += bench.processes(server)
        raise KeyboardInterrupt
    assert len(seen) == 8
    assert gone(seen)


def test_close_ends_waits_and_refuses_new_servers(bench: Bench) -> None:
    server = bench.start(script="import time; time.sleep(600)")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            server.wait_ready(timeout_s=600)
        except BenchError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    bench.servers.close()
    thread.join(timeout=60)
    assert [type(error) for error in raised] == [Cancelled]
    with pytest.raises(Cancelled):
        bench.start()


def test_a_command_that_cannot_run_leaves_nothing(tmp_path: Path) -> None:
    spec = ServerSpec("toy", [str(tmp_path / "absent")], {}, "http://127.0.0.1:1", tmp_path / "log")
    with Servers() as servers, pytest.raises(FileNotFoundError):
        servers.start(spec)


def test_the_tail_of_odd_logs(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "bytes").write_bytes(b"caf\xe9\nlast")
    assert tail(tmp_path / "empty") == "    (the log is empty)"
    assert tail(tmp_path / "bytes") == "    caf\ufffd\n    last"
    assert "no log" in tail(tmp_path / "absent")
