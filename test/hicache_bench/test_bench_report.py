"""The table and the JSON say what the rows say."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_world import COPIED, CORE, answer, core, extended, family, released, row

from hicache_bench import report
from hicache_bench.client import TIERS

OPTIONS = {"families": 4, "prefix": 128, "suffix": 72, "policy": "write_through"}


def document() -> dict[str, Any]:
    return report.document([released(), core(), extended()], OPTIONS)


def test_the_plain_table_has_a_line_for_each_row_and_no_colours() -> None:
    stream = io.StringIO()
    report.print_table([released(), core()], stream)
    text = stream.getvalue()
    assert "\x1b" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    start = "lfm2 shared prefix write_through v0.5.17"
    assert f"{start} as released 0/4 0.0000 0 / 0 / 0 0.0e+00 yes" in lines
    assert f"{start} + core 4/4 0.6400 0 / 4 / 0 5.0e-07 yes" in lines


def test_trees_stand_together_and_workloads_apart() -> None:
    stream = io.StringIO()
    report.print_table([released(), core(), extended("leaf"), extended("both")], stream)
    lines = [line.split() for line in stream.getvalue().rstrip().splitlines()]
    kinds = ["".join(words[1:2]) for words in lines]
    body = kinds[kinds.index("shared") :]
    assert body == ["shared", "shared", "", "state", "", "state"]


def test_a_row_that_is_not_as_expected_says_no() -> None:
    stream = io.StringIO()
    report.print_table([row(CORE, [family(answer())] * 4)], stream)
    assert stream.getvalue().split()[-1] == "no"


def test_bytes_stand_in_a_table_of_their_own() -> None:
    stream = io.StringIO()
    report.print_copied([released(), replace(core(), copied=COPIED), extended("leaf")], stream)
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "tokens from to the host: to the device:" in lines
    assert "model workload policy tree device / host KV / states KV / states" in lines
    start = "lfm2 shared prefix write_through v0.5.17"
    assert f"{start} as released 0 / 0 not known not known" in lines
    assert f"{start} + core 0 / 512 2.9 MB / 32.8 kB 24.6 kB / 120 B" in lines
    kinds = ["".join(line.split()[1:2]) for line in stream.getvalue().rstrip().splitlines()]
    assert kinds[-4:] == ["shared", "shared", "", "state"]  # workloads stand apart


def test_where_no_row_knows_its_bytes_there_is_no_table() -> None:
    stream = io.StringIO()
    report.print_copied([released(), core()], stream)
    assert stream.getvalue() == ""


def test_the_document_has_the_bytes_of_a_row_or_null() -> None:
    made = report.document([released(), replace(core(), copied=COPIED)], OPTIONS)
    assert [row["copied"] for row in made["rows"]] == [
        None,
        {
            "kv": {"device_to_host": 2_900_000, "host_to_device": 24_600},
            "mamba": {"device_to_host": 32_800, "host_to_device": 120},
        },
    ]
    assert json.loads(json.dumps(made)) == made


def test_the_document_holds_rows_details_trees_and_options() -> None:
    made = document()
    assert made["schema"] == report.SCHEMA
    assert made["options"] == OPTIONS
    assert made["failed_expectations"] == []
    assert made["trees"][1] == {
        "name": "v0.5.17 + core",
        "sglang": "0.5.17",
        "sha256": "b" * 64,
        "component_only_backup": True,
        "extended": False,
    }
    assert made["trees"][2]["extended"] is True
    assert made["workloads"] == [
        {"name": "shared-prefix", "label": "shared prefix", "clients": 1},
        {"name": "host", "label": "state made on the host only", "clients": 1},
    ]
    patched = made["rows"][1]
    assert patched["prefix_hits"] == 4
    assert patched["token_hit_rate"] == 0.64
    assert patched["tokens_by_tier"] == {"device": 0, "host": 512, "storage": 0}
    assert patched["as_expected"] is True
    assert patched["expected_hits"] == "all"
    named = [(row["workload"], row["label"], row["policy"]) for row in made["rows"][1:]]
    assert named == [
        ("shared-prefix", "shared prefix", "write_through"),
        ("host", "state made on the host only", "write_back"),
    ]
    assert len(patched["family_detail"]) == 4
    assert patched["family_detail"][3]["logprob_difference"] == pytest.approx(5e-7)
    assert patched["family_detail"][3]["measured"] == {
        "prompt": 200,
        "cached": 128,
        "tiers": {"device": 0, "host": 128, "storage": 0},
    }
    assert patched["family_detail"][3]["steps"] == [
        {"prompt": prompt, "tiers": dict.fromkeys(TIERS, 0), "expected": [0, 0]}
        for prompt in ("the prefix + suffix a", "the prefix")
    ]
    assert patched["sentinels"][0]["tiers"]["host"] == 16


def test_the_document_names_failed_expectations() -> None:
    made = report.document([released(), row(CORE, [family(answer())] * 4)], OPTIONS)
    assert [row["as_expected"] for row in made["rows"]] == [True, False]
    (line,) = made["failed_expectations"]
    assert "0/4 prefixes found" in line


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    report.write_json(document(), tmp_path / "one.json")
    report.write_json(document(), tmp_path / "deep" / "er" / "two.json")
    one = (tmp_path / "one.json").read_bytes()
    assert one == (tmp_path / "deep" / "er" / "two.json").read_bytes()
    assert json.loads(one) == document()
    assert list(json.loads(one)) == list(document())


def test_a_reader_of_the_old_file_never_sees_half_of_the_new_one(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")
    with target.open() as reader:
        report.write_json(document(), target)
        assert reader.read() == "old"
    assert json.loads(target.read_text()) == document()


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")

    def fail(file: Path) -> None:
        file.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        report.write_beside(target, fail)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_device_is_written_to_and_stays_one() -> None:
    report.write_json(document(), Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        report.write_json({"small": 1}, pipe)
        assert json.loads(os.read(reader, 4096)) == {"small": 1}
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_keeps_leading_where_it_led(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    report.write_json({"small": 1}, link)
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"small": 1}
