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
def dropped(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], real_bench.Run]:
    """Runs where one kind of copy does nothing, by group and checkpoint: core under write-through,
    extended under write-back. Two at a time, to save time.
    """
    folder = tmp_path_factory.mktemp("dropped")
    write_through = ["--trees", real_bench.CORE, "--policy", "write_through"]
    write_back = ["--trees", real_bench.EXTENDED, "--policy", "write_back"]
    words = {
        ("core", "lfm2"): [*write_through, "--workload", "shared-prefix"],
        ("core", "qwen3next"): [*write_through, "--workload", "shared-prefix"],
        ("extended", "lfm2"): [*write_back, *real_bench.PLACES],
    }

    def run(key: tuple[str, str]) -> real_bench.Run:
        group, model = key
        return real_bench.run(
            folder / f"{group}-{model}",
            models,
            "--model",
            model,
            *words[key],
            SGLANG_CPU_DROP=STATE_COPY[model],
        )

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(words, pool.map(run, words), strict=True))
