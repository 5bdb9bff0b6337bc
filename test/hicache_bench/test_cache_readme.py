"""README's figures are those of the committed JSON, or the check says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_world
import pytest
from test_cache_judge import TREES, WHOLE, outcome, result, whole_outcome

from hicache_bench import cli, readme, report
from hicache_bench.cache import report as cache_report
from hicache_bench.results import Row

FRAME = f"before\n\n{readme.BEGIN}\nearlier figures\n{readme.END}\n\nafter\n"


ROWS = (bench_world.released(), bench_world.core(), bench_world.extended())


def results(folder: Path, rows: Sequence[Row] = ROWS, **changes: Any) -> Path:
    server = report.document(rows, {"families": 4})
    measured = whole_outcome()
    measured.inserts = outcome().inserts
    measured.growth = outcome().growth
    measured.rows["state in flight"]["extended"] = result(10, 10)
    cache = cache_report.document(measured, WHOLE, TREES)
    folder.mkdir(exist_ok=True)
    (folder / readme.SOURCES["server"]).write_text(json.dumps(server))
    (folder / readme.SOURCES["cache"]).write_text(json.dumps({**cache, **changes}))
    return folder


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Options for a README and a JSON of this test, both written."""
    page, file = tmp_path / "README.md", tmp_path / "docs" / "bench.json"
    page.write_text(FRAME)
    options = ["readme", "--readme", str(page), "--json", str(file)]
    assert cli.main([*options, "--take", str(results(tmp_path / "out"))]) == 0
    return options


def test_the_tables_stand_between_the_marks(words: list[str]) -> None:
    text = Path(words[2]).read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "earlier figures" not in text
    assert (
        "| workload on the cache alone | as released | core | extended | 0.5.23 |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| shared prefix | 0/10 (0.0000) | 10/10 (0.6400) | 10/10 (0.6400) | 0/10 (0.0000) |\n"
    ) in text
    assert (
        "| state in flight | extended | 0 / 64,000 | 83.2 kB / 16.2 kB | 0 B / 0 B | 13 / 0 / 10 "
        "| 7.0 kB / 4.1 MB | 0 |" in text
    )
    assert "| 1,000 nodes | core | 1.010 | 1.000 to 1.020 | 0.990 |" in text
    assert "| Qwen3-Next-80B-A3B | 77.3 MB | 3.3 GB |" in text


def test_servers_have_a_line_for_each_workload_and_a_column_for_each_tree(words: list[str]) -> None:
    """A tree that did not run a workload has an empty place in its line."""
    lines = Path(words[2]).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| model "))
    trees = "v0.5.17 as released | v0.5.17 + core | v0.5.17 + extended"
    assert lines[start : start + 4] == [
        f"| model | workload on real servers | write policy | {trees} | worst logprob difference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| lfm2 | shared prefix | write_through | 0/4 (0.0000) | 4/4 (0.6400) |  | 5.0e-07 |",
        "| lfm2 | state made on the host only | write_back |  |  | 4/4 (0.6400) | 0.0e+00 |",
    ]


SUMMARY = "<details><summary>Bytes by pool and direction on real servers</summary>"


def test_bytes_of_servers_have_a_line_for_each_row(words: list[str], tmp_path: Path) -> None:
    rows = [replace(row, copied=bench_world.COPIED) for row in ROWS[:2]]
    folder = results(tmp_path / "counted", [*rows, ROWS[2]])
    assert cli.main([*words, "--take", str(folder)]) == 0
    lines = Path(words[2]).read_text().splitlines()
    start = lines.index(SUMMARY)
    assert lines[start + 1 : start + 9] == [
        "",
        "| model | workload on real servers | write policy | tree | tokens from device / host "
        "| to the host: KV / states | to the device: KV / states |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| lfm2 | shared prefix | write_through | v0.5.17 as released | 0 / 0 "
        "| 2.9 MB / 32.8 kB | 24.6 kB / 120 B |",
        "| lfm2 | shared prefix | write_through | v0.5.17 + core | 0 / 512 "
        "| 2.9 MB / 32.8 kB | 24.6 kB / 120 B |",
        "| lfm2 | state made on the host only | write_back | v0.5.17 + extended | 0 / 512 "
        "| not known | not known |",
        "",
        "</details>",
    ]
    assert cli.main([*words, "--check"]) == 0


def test_results_without_bytes_of_servers_have_no_table_of_them(words: list[str]) -> None:
    """As they were before bytes were counted, and where no row knows them."""
    page, file = Path(words[2]), Path(words[4])
    before = page.read_text()
    assert SUMMARY not in before
    value = json.loads(file.read_text())
    for row in value["server"]["rows"]:
        del row["copied"]
    file.write_text(json.dumps(value))
    assert cli.main([*words, "--check"]) == 0
    value["server"]["rows"][0]["copied"] = bench_world.COPIED  # one of three rows has it
    file.write_text(json.dumps(value))
    assert cli.main(words) == 0
    assert page.read_text().count("| not known | not known |") == 2


def test_the_check_agrees_with_what_was_written(words: list[str]) -> None:
    before = Path(words[2]).read_text()
    assert cli.main([*words, "--check"]) == 0
    assert cli.main(words) == 0
    assert Path(words[2]).read_text() == before


def test_a_figure_that_was_changed_by_hand_fails_the_check(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(words[2])
    changed = page.read_text().replace("| 10/10 (0.6400)", "| 10/10 (0.9999)")
    page.write_text(changed)
    capsys.readouterr()
    assert cli.main([*words, "--check"]) == 1
    said = capsys.readouterr().err
    assert "0.9999" in said
    assert "type: python -m hicache_bench readme" in said
    assert page.read_text() == changed


def test_pictures_are_drawn_beside_the_json(words: list[str]) -> None:
    folder = Path(words[4]).parent
    for name in ("cache.png", "cache_growth.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_a_readme_without_marks_is_refused(words: list[str]) -> None:
    Path(words[2]).write_text("nothing here\n")
    assert cli.main(words) == 2


def test_figures_of_a_run_that_failed_are_not_taken(words: list[str], tmp_path: Path) -> None:
    folder = results(tmp_path / "bad", failed_expectations=["something"])
    before = Path(words[4]).read_text()
    assert cli.main([*words, "--take", str(folder)]) == 1
    assert Path(words[4]).read_text() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("{}", "expected the keys server, cache"),
        ('{"server": {"schema": 99}, "cache": {}}', "server is written in schema 99"),
        (
            f'{{"server": {{"schema": {report.SCHEMA}}}, "cache": {{"schema": 99}}}}',
            "cache is written",
        ),
    ],
)
def test_a_json_that_cannot_be_used_is_refused(
    words: list[str], text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(words[4]).write_text(text)
    assert cli.main(words) == 2
    assert says in capsys.readouterr().err
