"""Run the registered tests on mutants, each in a fork of a process that has sglang imported.

Started by `patchseries.mutate` in the environment of the patched tree, with the tests as arguments.
Reads one JSON object a line, {"path": ..., "source": ...}, and answers "caught" or "survived".
Importing torch and sglang takes most of a test run, so that is done once.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang_cpu.pytest_plugin as plugin


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _code_objects(constant)


def _mutate(path: str, source: str) -> None:
    """Give every function of the module at ``path`` (relative to the tree) the mutant's code.

    Raises ValueError where a function's closure has another shape.
    """
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert module.__file__ is not None
    codes = {
        code.co_qualname: code for code in _code_objects(compile(source, module.__file__, "exec"))
    }
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
            code = codes.get(function.__code__.co_qualname)
            if code is not None:
                function.__code__ = code


def _run(tests: list[str], mutant: dict[str, str] | None) -> int:
    """pytest's exit code for one mutant, run in a fork."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        if mutant is not None:
            _mutate(mutant["path"], mutant["source"])
        # The plugin is in this process already; pytest needs it by name for its hooks only.
        options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=300", "-p", plugin.__name__]
        code = int(pytest.main([*options, *tests]))
    except BaseException:  # what a mutant does to the process is a failure of its tests
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    """Answer mutants until standard input ends; an empty line asks for a run without one."""
    tests = sys.argv[1:]
    for test in map(Path, tests):
        # As pytest imports them, which then finds them, and all that they import, in sys.modules.
        folder = str(test.parent.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        importlib.import_module(test.stem)
    for line in sys.stdin:
        mutant = json.loads(line) if line.strip() else None
        code = _run(tests, mutant)
        print("survived" if code == 0 else "caught", flush=True)


if __name__ == "__main__":
    main()
