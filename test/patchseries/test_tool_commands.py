"""The command line in a process of its own: exit codes, JSON, errors that name the next command."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import world

from patchseries import cli, runner
from patchseries.errors import ExitCode, PatchSeriesError


def run(small: world.World, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "patchseries", "--repo", str(small.repository.root)]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_a_day_of_an_operator(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    for arguments, said in (
        (("status", target), "target: not applied (v1.0)"),
        (
            ("apply", target, "--through", "core"),
            "applied v1.0 through HiCache-Back-up-a-state-alone",
        ),
        (("apply", target), "3 patches, 2 files changed"),
        (("apply", target), "already applied"),
        (("status", target), "target: applied (v1.0 through HiCache-Drop-the-old-way)"),
        (("reverse", target), "reversed 3 patches: 4 files as released again"),
        (("reverse", target), "not applied"),
    ):
        done = run(small, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert said in done.stdout
    assert world.snapshot(target) == before


def test_status_as_json(small: world.World) -> None:
    target = small.unpacked()
    (target / "sglang/srt/pool.py").write_text("mine\n")
    done = run(small, "status", target, "--json")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert (data["state"], data["base"], data["recorded"]) == ("drifted", "v1.0", False)
    (file,) = data["files"]
    assert (file["path"], file["reason"]) == (world.POOL, "upstream file changed")
    assert re.fullmatch("[0-9a-f]{64}", file["found"])
    assert len(file["expected"]) == 3


def test_list(small: world.World) -> None:
    done = run(small, "list", "--json")
    (base,) = json.loads(done.stdout)["bases"]
    assert [each["name"] for each in base["patches"]] == [world.FIRST, world.SECOND, world.THIRD]
    assert [each["group"] for each in base["patches"]] == ["core", "core", "extended"]
    second = base["patches"][1]
    assert (second["added"], second["removed"]) == (5, 1)
    assert [each["path"] for each in second["files"]] == [world.CACHE, world.NEW, world.POOL]
    shown = run(small, "list").stdout
    assert "group core\n  1  [HiCache] Let a node say" in shown
    assert "Pending; +5 -1 in 3 files" in shown


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_has_seen_enough(
    unbuffered: str, small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-m", "patchseries", "--repo", str(small.repository.root), "list"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_refused(small: world.World) -> None:
    target = small.unpacked()
    (target / "sglang/srt/pool.py").write_text("mine\n")
    done = run(small, "apply", target)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("patchseries: upstream file changed: ")
    assert f"{target}/sglang/srt/pool.py; expected " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required"),
        (("apply",), "TARGET"),
        (("apply", "/nowhere"), "no such folder"),
        (("apply", "{target}", "--through", "x"), "no patch or group is named 'x'"),
        (("apply", "{target}", "--base", "v9"), "no such base: v9"),
        (("apply", "{target}", "--base", "../x"), "no such base"),
        (("status", "{target}", "--", "x"), "only test takes arguments"),
        (("tree", "{target}"), "not empty"),
        (("export", "{target}"), "not a repository that edit made"),
        (("pin", "--check", "--wheels", "{target}"), "no wheel of this release"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], said: str, small: world.World) -> None:
    target = small.unpacked()
    done = run(small, *(each.format(target=target) for each in arguments))
    assert done.returncode == 2, done
    assert said in done.stderr


def test_lint_and_pin(small: world.World) -> None:
    assert run(small, "lint").returncode == 0
    assert run(small, "pin", "--check").returncode == 0
    path = small.patches / "base.toml"
    path.write_text(path.read_text().replace("# Every", "# All"))
    done = run(small, "lint")
    assert done.returncode == 1
    assert done.stdout.startswith("patches/v1.0/base.toml:")
    assert "type: python -m patchseries pin --base v1.0" in done.stdout
    assert run(small, "pin", "--check").returncode == 1
    assert "renewed" in run(small, "pin").stdout
    assert run(small, "lint").returncode == 0


def test_edit_and_export(small: world.World) -> None:
    again = small.folder / "again"
    assert run(small, "edit", again).returncode == 0
    assert run(small, "export", again, "--check").stdout == "5 files unchanged\n"
    world.git(again, "reset", "--quiet", "--hard", "HEAD~1")
    done = run(small, "export", again, "--check")
    assert done.returncode == 1
    assert f"would delete patches/v1.0/{world.THIRD}" in done.stdout
    assert f"deleted patches/v1.0/{world.THIRD}" in run(small, "export", again).stdout


def test_tree(small: world.World) -> None:
    done = run(small, "tree", "--base", "v1.0", "--through", "core", small.folder / "tree")
    assert done.returncode == 0
    assert (small.folder / "tree/sglang/srt/hybrid/state.py").exists()


def test_every_command_has_an_example_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    names = re.findall(r"^    (\w+) +\w", capsys.readouterr().out, re.MULTILINE)
    assert {"apply", "status", "reverse", "tree", "list", "lint", "test"} <= set(names)
    for name in names:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        shown = capsys.readouterr().out
        (example,) = re.findall(r"^  python -m patchseries (.*)$", shown, re.MULTILINE)
        typed = shlex.split(example)
        options = cli._parser().parse_args(typed[: typed.index("--")] if "--" in typed else typed)
        assert options.command == name


def test_commands_to_type_are_called_as_the_tool_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = PatchSeriesError("wrong", command="python -m patchseries status X")
    assert str(error) == "wrong; type: python -m patchseries status X"
    monkeypatch.setenv("PATCHSERIES_COMMAND", "scripts/patchseries")
    assert str(error) == "wrong; type: scripts/patchseries status X"


def test_a_python_that_cannot_run_sglang_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    with pytest.raises(PatchSeriesError, match="this python lacks torch;") as caught:
        runner.sglang_engine()
    assert caught.value.code is ExitCode.USAGE
