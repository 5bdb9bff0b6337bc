"""Tests of the stand-ins on sglang's real modules: collected only where sglang_cpu has put them in.

test_cpu_host.py, one folder up, runs them in a process that has. By hand:
PYTHONPATH=TREE:python python -m pytest -p sglang_cpu.pytest_plugin test/sglang_cpu/host
"""

from __future__ import annotations

import sys

_install = sys.modules.get("sglang_cpu.install")
collect_ignore_glob = [] if _install is not None and _install.installed() else ["test_*.py"]
