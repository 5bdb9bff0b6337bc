"""What the tests of real servers share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import real_bench

# A copy that only a restored state goes through, for each checkpoint (kinds: sglang_cpu.kinds).
STATE_COPY = {"lfm2": "conv_backup", "qwen3next": "temporal_load"}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the checkpoints."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def dropped(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, real_bench.Run]:
    """Runs with core where one kind of copy does nothing, by checkpoint; side by side, to save
    time.
    """
    folder = tmp_path_factory.mktemp("dropped")

    def run(model: str) -> real_bench.Run:
        words = ["--model", model, "--trees", "v0.5.17:core"]
        return real_bench.run(folder / model, models, *words, SGLANG_CPU_DROP=STATE_COPY[model])

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(STATE_COPY, pool.map(run, STATE_COPY), strict=True))
