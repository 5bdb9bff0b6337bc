"""How a server is launched for the workload: sglang's own flags, this machine's environment."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

import sglang_cpu
from hicache_bench.models import Checkpoint
from hicache_bench.server import ServerSpec
from hicache_bench.workload import Policy, Shape, Sizes, sizes_for

HOST = "127.0.0.1"


def spec(
    name: str,
    checkpoint: Checkpoint,
    tree: Path,
    *,
    shape: Shape,
    policy: Policy,
    logs: Path,
    environ: Iterable[tuple[str, str]] = (),
) -> ServerSpec:
    """Everything that starting one server from `tree` takes; its ports are free at this moment.

    environ: more environment variables, name and value.
    """
    port = free_port()
    file = re.sub(r"[^\w.+-]+", "-", name)
    sizes = sizes_for(shape, policy)
    return ServerSpec(
        name=name,
        command=command(checkpoint, sizes, policy, port),
        environ={**environment(tree), **dict(environ)},
        url=f"http://{HOST}:{port}",
        log=logs / f"{file}-{port}.log",
    )


def command(checkpoint: Checkpoint, sizes: Sizes, policy: Policy, port: int) -> list[str]:
    """The command line of one server that listens on the TCP port `port` of 127.0.0.1."""
    flags: dict[str, object] = {
        "model-path": checkpoint.path,
        "host": HOST,
        "port": port,
        # Left to itself each server looks for a port, and two that start together find the same.
        "nccl-port": free_port(),
        "device": "cpu",
        "attention-backend": "torch_native",
        "dtype": "float32",  # logprobs are compared to 1e-5
        "max-running-requests": 2,
        "max-total-tokens": sizes.device_tokens,
        "max-mamba-cache-size": sizes.device_states,
        # No chunks: the end of one would leave a state inside the prefix for later prompts to
        # resume from, and would keep prompts of one call from ending in the same step.
        "chunked-prefill-size": -1,
        "max-prefill-tokens": sizes.device_tokens,
        "hicache-ratio": sizes.host_ratio,
        "hicache-write-policy": policy,
        "hicache-io-backend": "direct",
        "hicache-mem-layout": "page_first_direct",
        # On a CPU hybrid models run only so, and without the overlapped schedule. LFM2 chooses it
        # by itself, Qwen3-Next does not.
        "mamba-radix-cache-strategy": "no_buffer",
    }
    switches = (
        "disable-overlap-schedule",
        "skip-tokenizer-init",
        "enable-cache-report",
        "enable-hierarchical-cache",
        "enable-metrics",  # answers then tell when their first forward pass began
    )
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    words += [f"--{switch}" for switch in switches]
    return [sys.executable, "-m", "sglang.launch_server", *words]


def environment(tree: Path) -> dict[str, str]:
    """The environment in which `command` runs from `tree` on the CPU."""
    base = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",  # nothing is to be fetched: the checkpoint is a local folder
        "PYTHONDONTWRITEBYTECODE": "1",  # a folder of the user's own stays as it is
        "PYTHONUNBUFFERED": "1",  # the tail of a log is of use only if it is the end
    }
    return sglang_cpu.environment(tree, base)


def hide_gpus(environ: MutableMapping[str, str]) -> None:
    """Make this process and its children see no GPU; to be called before torch is imported.

    Every tree is measured on the CPU, so that the figures are the same on every machine.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        environ[name] = ""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
