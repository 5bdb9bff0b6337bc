"""With a GPU present, nothing is touched: processes in which torch is told that it sees one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_cpu

PRESENT = """
import os
import sys
import torch
from torch.overrides import _get_current_function_mode_stack as modes

torch.cuda.is_available = lambda: True


def snapshot():
    cuda = [torch.cuda.synchronize, torch.cuda.current_stream]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return [dict(vars(torch)), cuda, list(sys.path), environ]


before = snapshot()
"""

UNTOUCHED = """
found = {name.partition(".")[0] for name in sys.modules} & {"sglang", "sgl_kernel", "torchvision"}
assert not found, found
assert not modes()
same = [a == b for a, b in zip(before, snapshot())]
assert same == [True] * 4, same
print("untouched")
"""

USES = {
    "server": "import sglang_cpu.server; sglang_cpu.server.register()",
    "pytest": """
import pytest
assert pytest.main(["-q", "-p", "sglang_cpu.pytest_plugin", "-p", "no:cacheprovider", "--co",
sys.argv[1]]) == 5
""",
    "transfers": """
import sglang_cpu.transfers
try:
    with sglang_cpu.transfers.hold():
        raise SystemExit("held")
except RuntimeError as error:
    assert "no GPU" in str(error)
""",
}


@pytest.mark.parametrize("use", USES)
def test_untouched(use: str, tree: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESENT + USES[use] + UNTOUCHED, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree), *sys.path]),
            sglang_cpu.COPIED: str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("untouched\n"), done.stdout + done.stderr
    assert sglang_cpu.copied(tmp_path) is None
