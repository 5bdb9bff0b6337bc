"""pytest plugin: sglang's HiCache unit tests where there is no accelerator.

    PYTHONPATH=TREE:python python -m pytest -p sglang_cpu.pytest_plugin test/registered/...

TREE holds ``sglang/``. Everything is in place before the first test module is imported. With a GPU
it does nothing.

What it adds to `sglang_cpu.install`:

- tensors that are asked for with device "cuda" or in pinned memory come from plain host memory:
  sglang's MambaPool asks so, whatever device it is given, and sglang's own tests do;
- ``torch.cuda.synchronize`` and ``torch.cuda.current_stream`` answer for the host;
- a test class that is skipped because its cache fixtures need CUDA runs, as they no longer do.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from sglang_cpu import probe
from sglang_cpu.env import SETTINGS

_UNSKIPPED = re.compile(r"cache fixtures need CUDA")


class HostTensors(TorchFunctionMode):
    """Answer requests for CUDA tensors and for pinned memory with plain host memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], "cpu", *args[2:])
        return func(*args, **kwargs)


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


_ACTIVE = not probe.accelerator_present()
_host_tensors: Any = HostTensors()

if _ACTIVE:
    for _name, _value in SETTINGS.items():
        os.environ.setdefault(_name, _value)
    sys.path[:0] = [str(folder) for folder in probe.stub_folders() if str(folder) not in sys.path]

    if importlib.util.find_spec("sglang") is None:
        raise pytest.UsageError(
            "sglang_cpu.pytest_plugin: no sglang on PYTHONPATH; expected a folder that holds "
            "sglang/, such as one made by: python -m patchseries tree --base v0.5.17 DEST"
        )
    from sglang_cpu import device
    from sglang_cpu.install import install

    install()
    torch.cuda.synchronize = device.synchronize
    torch.cuda.current_stream = device.current_stream  # type: ignore[assignment]
    _host_tensors.__enter__()


def pytest_unconfigure() -> None:
    """Leave the mode of tensors; the modules stay patched until the process ends."""
    if _ACTIVE:
        _host_tensors.__exit__(None, None, None)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    """Take unittest's skip mark off classes whose only obstacle was the device."""
    reason = str(getattr(obj, "__unittest_skip_why__", ""))
    if _ACTIVE and isinstance(obj, type) and _UNSKIPPED.search(reason):
        obj.__unittest_skip__ = False  # type: ignore[attr-defined]


def pytest_report_header() -> str:
    """Say whether the host stands in."""
    if not _ACTIVE:
        return "sglang_cpu: a GPU is present, nothing is replaced"
    where = sys.modules["sglang"].__file__
    return f"sglang_cpu: host memory in place of the device; sglang from {where}"
