"""Records what the cache of one source tree does on random traces; run by test_off_is_as_released.

python record_traces.py OUT.json SEED...

OUT.json gets ``{"<configuration>, <m> states, seed <n>": [line, ...]}``. The tree is the one that
comes first on PYTHONPATH, as `sglang_cpu.environment` sets it.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

STATES = (8, 14)
"""Device Mamba slots: so few that requests must evict for theirs, and enough for refusals."""

REGISTERED = Path(__file__).resolve().parents[1] / "registered" / "unit" / "mem_cache"


def main(out: Path, seeds: list[int]) -> None:
    import sglang_cpu.pytest_plugin  # noqa: F401 - before sglang: the host stands in for a GPU

    sys.path.insert(0, str(REGISTERED))
    import test_unified_backup_switch as traces

    logging.disable(logging.WARNING)  # of each small host pool
    logs = {
        f"{config}, {states} states, seed {seed}": traces.record(config, seed).log
        for states in STATES
        for config in traces.configs(states)
        for seed in seeds
    }
    out.write_text(json.dumps(logs), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
