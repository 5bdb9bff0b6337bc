"""The process environment in which sglang runs on this machine.

env = sglang_cpu.environment(tree)
subprocess.Popen([sys.executable, "-m", "sglang.launch_server", "--device", "cpu", ...], env=env)
subprocess.run([sys.executable, "-m", "pytest", "-p", "sglang_cpu.pytest_plugin", ...], env=env)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sglang_cpu import probe

_PACKAGE = Path(__file__).resolve().parent

SETTINGS = {
    # sglang takes its CPU paths instead of asking for Triton
    "SGLANG_USE_CPU_ENGINE": "1",
    # tiny models gain nothing from threads: a request took 1 s with two, 30 ms with one
    "OMP_NUM_THREADS": "1",
    # the models run in float32; a narrower state would cost digits
    "SGLANG_MAMBA_CONV_DTYPE": "float32",
}
"""What is set where there is no GPU."""


def environment(tree: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which sglang's server, and pytest, run from a source tree.

    With a GPU, that is `base` with the tree in front of PYTHONPATH, and nothing else. Without one,
    also sglang_cpu, its server plugin (an entry point that only this PYTHONPATH shows to sglang;
    pip never installs it), stand-ins for what cannot be imported here, and `SETTINGS`, of which
    `base` may have its own values.

    Args:
        tree: a folder that holds ``sglang/``.
        base: what to start from; default: this process's environment.

    Raises:
        FileNotFoundError: the tree holds no sglang.
    """
    tree = Path(tree).resolve()
    if not (tree / "sglang" / "__init__.py").is_file():
        raise FileNotFoundError(
            f"{tree / 'sglang' / '__init__.py'} does not exist; expected a folder that holds "
            "sglang/, such as one made by: python -m patchseries tree --base v0.5.17 DEST"
        )
    env = dict(os.environ if base is None else base)
    folders = [str(tree)]
    if not probe.accelerator_present():
        folders += [str(_PACKAGE / "plugin"), str(_PACKAGE.parent)]
        folders += [str(folder) for folder in probe.stub_folders()]
        env = {**SETTINGS, **env}
    before = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders + before))
    return env
