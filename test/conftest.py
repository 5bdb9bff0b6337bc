"""Lets the processes that tests start import our packages, as pytest itself does (pyproject.toml)."""

import os
from pathlib import Path

_PYTHON = str(Path(__file__).resolve().parents[1] / "python")
_FOLDERS = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
if _PYTHON not in _FOLDERS:
    os.environ["PYTHONPATH"] = os.pathsep.join([*_FOLDERS, _PYTHON])
