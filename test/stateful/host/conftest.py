"""Tests on sglang's real cache: collected only where sglang_cpu has put its stand-ins in.

test_stateful_runs.py, one folder up, runs them in a process that has. By hand:
scripts/fuzz --help
"""

from __future__ import annotations

import sys

_install = sys.modules.get("sglang_cpu.install")
collect_ignore_glob = [] if _install is not None and _install.installed() else ["test_*.py"]
