"""Options of `cache` and `server`: help with an example each, status 2 for wrong usage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_bench import cli
from hicache_bench import readme as readme_module
from hicache_bench.cache import cli as cache_cli
from hicache_bench.url import cli as url_cli


@pytest.mark.parametrize("module", [cache_cli, url_cli, readme_module])
def test_every_option_has_an_example(module: object) -> None:
    for action in module.parser()._actions:  # type: ignore[attr-defined]
        if action.dest != "help" and "--readme" not in action.option_strings:
            assert "example: " in (action.help or ""), action.option_strings


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--families", "0"], "--families 0: expected at least 1"),
        (["--prefix", "100"], "--prefix 100: expected a positive multiple"),
        (["--device-tokens", "6400"], "--device-tokens 6400: prompts of 10000 tokens need"),
        (["--trees", "v0.5.17"], "--trees v0.5.17: expected BASE:THROUGH"),
    ],
)
def test_wrong_usage_starts_nothing(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache", *words]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


def test_one_workload_as_json_leaves_standard_output_to_it(tmp_path: Path) -> None:
    words = ["--only", "--families", "2", "--prefix", "640", "--suffix", "360"]
    words += ["--device-tokens", "8192", "--host-ratio", "8", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "hicache_bench", "cache", *words, "--json", "-"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    (only,) = value["workloads"]
    assert [(row["tree"], row["prefix_hits"]) for row in only["rows"]] == [
        ("v0.5.17 as released", 0),
        ("v0.5.17 + core", 2),
        ("v0.5.17 + extended", 2),
        ("v0.5.23 as released, rust core", 2),
    ]
    assert [row["bytes_per_state_bytes"] for row in only["rows"]] == [None, 1.0, 1.0, 1.0]
    assert only["rows"][3]["tree_core"] == "RustUnifiedTreeCore"
    assert [tree["group"] for tree in value["trees"]] == ["released", "core", "extended", "peer"]
    assert json.loads((tmp_path / "cache.json").read_text()) == value
    assert (tmp_path / "cache.png").read_bytes().startswith(b"\x89PNG")
