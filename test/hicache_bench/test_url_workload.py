"""The workload for a server of any size, against an engine that caches as sglang does."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_world import Engine
from test_url_facts import server

from hicache_bench import cli
from hicache_bench.client import Answer
from hicache_bench.errors import UsageError
from hicache_bench.url import facts, plot, report, workload

FACTS = replace(
    server(), device_tokens=880, device_states=8, step=1, strategy="no_buffer", max_input=874
)


def plan(cold: bool = False, **changes: Any) -> workload.Plan:
    made = workload.plan(FACTS, families=4, prefix=128, suffix=72, vocab=2048, seed=5, cold=cold)
    return replace(made, **changes)


def run(engine: Any, made: workload.Plan | None = None, at_once: int = 1) -> workload.Measured:
    return workload.Run([engine] * at_once, made or plan()).run()


@pytest.mark.parametrize(("incremental", "hits"), [(False, 0), (True, 4)])
def test_hits_are_those_of_the_engine(incremental: bool, hits: int) -> None:
    measured = run(Engine(incremental, device_states=8))
    assert measured.hits(128) == hits
    assert report.failed_expectations(measured) == []


def test_nothing_is_flushed_unless_asked_for() -> None:
    engine = Engine(incremental=True, device_states=8)
    run(engine)
    assert engine.flushes == 0
    made = plan(cold=True)
    measured = run(engine, made)
    assert engine.flushes == 2
    assert len(measured.cold) == made.families


def test_the_plan_says_what_is_sent() -> None:
    for made in (plan(), plan(cold=True), plan(repeats=2), plan(branches=True)):
        engine = Engine(incremental=True, device_states=8)
        run(engine, made)
        assert len(engine.prompts) == made.requests
        sent = sum(map(len, engine.prompts))
        assert sent <= made.prompt_tokens <= 1.2 * sent


def test_only_ids_of_the_vocabulary_are_sent() -> None:
    engine = Engine(incremental=True, device_states=8)
    run(engine)
    assert max(max(ids) for ids in engine.prompts) < 2048
    assert min(min(ids) for ids in engine.prompts) >= 100


def test_prompts_share_the_prefix_and_nothing_else() -> None:
    engine = Engine(incremental=True, device_states=8)
    run(engine, plan(branches=True))
    families: dict[int, list[list[int]]] = {}
    for ids in engine.prompts:
        families.setdefault(ids[0], []).append(ids)
    shared = [group for group in families.values() if len(group) == 3]
    assert len(shared) == 4
    for group in shared:
        assert len({tuple(ids[:128]) for ids in group}) == 1
        assert len({ids[128] for ids in group}) == 3


def test_a_device_that_holds_more_than_the_flood_is_noticed() -> None:
    measured = run(Engine(incremental=False, device_states=1000))
    assert measured.hits(128) == 4
    assert len(report.failed_expectations(measured)) == 3


def test_a_host_pool_that_is_too_small_is_noticed() -> None:
    measured = run(Engine(incremental=True, device_states=8, host_states=20))
    (only,) = report.failed_expectations(measured)
    assert only.startswith("host pool: ")


class Counted:
    """Counts how many requests are in flight; a prompt of 200 tokens waits for two others."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(3)

    def generate(self, ids: Sequence[int], new_tokens: int) -> Answer:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if len(ids) == 200:
            with contextlib.suppress(threading.BrokenBarrierError):
                self._together.wait(timeout=5)
        with self._lock:
            self.now -= 1
        return Answer(len(ids), 0, (0, 0, 0), tuple(range(new_tokens)), (-1.0,) * new_tokens)

    def flush(self) -> None:
        raise AssertionError("nobody asked for that")


def test_as_many_requests_are_in_flight_as_there_are_engines() -> None:
    engine = Counted()
    run(engine, at_once=3)
    assert engine.most == 3


def document(name: str, incremental: bool, **changes: Any) -> dict[str, Any]:
    engine = Engine(incremental, device_states=8)
    made = plan()
    found: facts.Facts = replace(FACTS, **changes)
    return report.document(name, found, made, [], run(engine, made))


def test_the_bytes_of_a_server_that_somebody_else_launched_are_not_known() -> None:
    assert document("mine", True)["copied"] is None


def written(folder: Path, *values: dict[str, Any]) -> list[Path]:
    paths = []
    for value in values:
        paths.append(folder / f"{value['name']}.json")
        paths[-1].write_text(json.dumps(value))
    return paths


def test_compare_shows_both_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, document("before", False), document("after", True))
    picture = tmp_path / "hits.png"
    words = ["server", "--compare", *map(str, paths), "--plot", str(picture)]
    assert cli.main(words) == 0
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["before", "0/4"] in [line[:2] for line in lines]
    assert ["after", "4/4"] in [line[:2] for line in lines]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert shown.err == ""


def test_compare_says_what_else_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, document("a", False), document("b", True, page=64, model="other"))
    assert cli.main(["server", "--compare", *map(str, paths)]) == 0
    notes = capsys.readouterr().err
    assert "the servers' model differs: far/away, other" in notes


def test_compare_refuses_what_is_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    for text, says in (
        ("nonsense", "cannot be read"),
        (json.dumps({"workload": "shared-prefix"}), "not the result of"),
        (json.dumps({"workload": report.WORKLOAD, "schema": 99}), "written in schema 99"),
    ):
        file.write_text(text)
        assert cli.main(["server", "--compare", str(file)]) == 2
        assert says in capsys.readouterr().err
    assert cli.main(["server", "--compare", str(tmp_path / "none.json")]) == 2


def test_the_picture_s_bars_add_up(tmp_path: Path) -> None:
    values = [document("before", False), document("after", True)]
    for value in values:
        assert sum(value["tokens"].values()) == value["prompt_tokens"]
    plot.write(values, tmp_path / "a.png")
    plot.write(values, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--url", "127.0.0.1:30000"], "expected http://HOST:PORT"),
        (["--url", "http://h", "--concurrency", "0"], "--concurrency 0: expected at least 1"),
        (["--url", "http://h", "--rate", "0"], "--rate 0.0: expected more than 0"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_sent(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["server", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_url_where_nothing_listens_is_one_clear_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["server", "--url", "http://127.0.0.1:9"]) == 1
    assert "is it up, and is this its --host and --port?" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        report.load(tmp_path)
