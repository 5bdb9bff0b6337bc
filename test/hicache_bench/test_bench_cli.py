"""Options and their errors: status 2 for wrong usage, 1 for what is not so; no server starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_bench import cli, options


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hicache_bench", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def model(folder: Path, **config: object) -> str:
    sizes = {"vocab_size": 2048, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps({**sizes, **config}))
    return str(folder)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--families", "0"], "--families 0: expected at least 1"),
        (["--prefix", "8"], "--prefix 8: expected at least 16"),
        (["--suffix", "-4"], "--suffix -4: expected at least 2"),
        (["--jobs", "0"], "--jobs 0: expected at least 1"),
        (["--workload", "chat"], "--workload chat: expected one of shared-prefix, same-step"),
        (["--workload", "leaf", "--policy", "write_through"], "expected write_back; type: "),
        (["--model", "llama"], "--model llama: expected lfm2, qwen3next, both"),
        (["--trees", "v0.5.17"], "--trees v0.5.17: expected BASE:THROUGH"),
        (["--trees", "a=/tmp", "--trees", "a=/usr"], "two trees are called 'a'"),
    ],
)
def test_bad_values_exit_2_with_the_value_and_a_next_step(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert says in line


@pytest.mark.parametrize("words", [["--policy", "write_never"], ["--prefix", "long"], ["--what"]])
def test_words_that_the_parser_refuses_exit_2(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "words", "says"),
    [
        ({}, ["--prefix", "4096"], "has 4096 positions"),
        ({"vocab_size": 20}, [], "each begin with a token of their own"),
        ({"vocab_size": None}, [], "vocab_size and max_position_embeddings are None and 4096"),
    ],
)
def test_a_checkpoint_that_does_not_fit_exits_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, object],
    words: list[str],
    says: str,
) -> None:
    assert cli.main(["--model", model(tmp_path, **config), *words]) == 2
    assert says in capsys.readouterr().err


def test_a_tree_that_is_none_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", model(tmp_path), "--trees", f"mine={tmp_path}", "--out", str(tmp_path)]
    assert cli.main(words) == 1
    assert f"{tmp_path}: no sglang/launch_server.py" in capsys.readouterr().err


# A tree whose server is ready at once, and then does as the word in its place says.
SERVER = """
import argparse, http.server, json, os
words = argparse.ArgumentParser()
words.add_argument("--port", type=int)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = json.dumps({"uses_mamba_radix_cache": TRAIT != "plain"}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(text)))
        self.end_headers(); self.wfile.write(text)
    def do_POST(self):
        if TRAIT == "dies":
            print("out of slots", flush=True)
            os._exit(3)
        print("refusing", flush=True)
        self.send_error(418, "no room")
address = ("127.0.0.1", words.parse_known_args()[0].port)
http.server.HTTPServer(address, Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("trait", "status", "says"),
    [
        ("dies", 1, ["broken: the server ended with status 3", "    out of slots\n"]),
        ("refuses", 1, ["expected status 200, got 418", "    refusing\n", "the whole log: "]),
        ("plain", 2, ["not a hybrid model"]),
    ],
)
def test_a_server_that_fails_half_way_shows_its_log(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trait: str,
    status: int,
    says: list[str],
) -> None:
    broken = tmp_path / "broken" / "sglang"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "launch_server.py").write_text(f"TRAIT = {trait!r}\n{SERVER}")
    words = ["--model", model(tmp_path), "--trees", f"broken={broken.parent}"]
    words += ["--policy", "write_through"]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == status
    printed = capsys.readouterr()
    for text in says:
        assert text in printed.err


def test_a_server_that_does_not_come_up_exits_1_with_the_tail_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken" / "sglang"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "launch_server.py").write_text("raise SystemExit('no kernel for this machine')\n")
    words = ["--model", model(tmp_path), "--trees", f"broken={broken.parent}"]
    words += ["--policy", "write_through"]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (log,) = (tmp_path / "out" / "logs").iterdir()
    name = f"{tmp_path.name}, write_through, broken"
    assert f"{name}: the server ended with status 1" in printed.err
    assert "    no kernel for this machine\n" in printed.err
    assert f"the whole log: {log}" in printed.err


def test_help_has_an_example_for_each_option() -> None:
    done = run("--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for action in options.parser()._actions:
        if action.dest != "help":
            assert f"example: {action.option_strings[0]}" in text


def test_the_default_folder_is_in_this_checkout() -> None:
    assert cli.default_out() == Path(__file__).resolve().parents[2] / "build" / "bench"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_the_next_ones_wait(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), cli._signals():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # would end the clean-up, or this process
            survived = True
    assert survived
    assert signal.getsignal(number) == before


def test_gpus_are_hidden_before_torch_is_imported(tmp_path: Path) -> None:
    script = (
        "import os, sys; from hicache_bench import cli; cli.main(['--model', 'nothing']);"
        "assert 'torch' not in sys.modules; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "''\n"


def test_a_result_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for words in (["--out", str(file)], ["--json", str(tmp_path)], ["--plot", str(tmp_path)]):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert str(words[1]) in said
        assert "type: python -m hicache_bench" in said


@pytest.mark.parametrize("folder", ["", "/no/such/folder"])
def test_a_tree_that_is_not_there_is_wrong_usage(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--trees", f"mine={folder}"]) == 2
    assert f"mine={folder}: no such folder" in capsys.readouterr().err
