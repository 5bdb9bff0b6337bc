"""What this machine and its Python environment can do."""

from __future__ import annotations

import functools
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_STUBS = Path(__file__).resolve().parent / "stubs"

_STAND_INS = {
    "kernel": (
        "sgl_kernel",
        "import torch, sgl_kernel.mamba; torch.ops.sgl_kernel.fused_gdn_gating_cpu",
    ),
    "vision": ("torchvision", "import torchvision.io, torchvision.transforms.v2.functional"),
}
"""Folder of a stand-in: its package, and what the real one must do to make it unnecessary."""


def accelerator_present() -> bool:
    """Whether torch sees a GPU. Then sglang_cpu does nothing at all."""
    import torch  # noqa: PLC0415 - seconds; only whoever asks pays

    return torch.cuda.is_available()


@functools.cache
def stub_folders() -> tuple[Path, ...]:
    """The folders of those stand-ins that are needed, in a fixed order.

    A real package that is there is tried in a process of its own, once: a half-loaded one would
    stay behind in this one, and that a CUDA build cannot load without a driver shows only then.
    """
    return tuple(
        _STUBS / folder
        for folder, (package, trial) in _STAND_INS.items()
        if not (_found(package) and _works(trial))
    )


def _found(package: str) -> bool:
    return PathFinder.find_spec(package, _real_path()) is not None


def _works(trial: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {_real_path()!r}; {trial}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _real_path() -> list[str]:
    return [folder for folder in sys.path if not folder.startswith(str(_STUBS))]
