"""The checkpoints: the same bytes every time, and an output that depends on the whole context."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from hicache_bench import models
from hicache_bench.errors import UsageError


@pytest.fixture(scope="module", params=models.names())
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> models.Checkpoint:
    return models.make(request.param, tmp_path_factory.mktemp("models"))


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_it_is_made_once_and_then_used_again(checkpoint: models.Checkpoint) -> None:
    before = {file: file.stat().st_mtime_ns for file in checkpoint.path.iterdir()}
    assert models.make(checkpoint.name, checkpoint.path.parent) == checkpoint
    assert {file: file.stat().st_mtime_ns for file in checkpoint.path.iterdir()} == before
    assert [path.name for path in checkpoint.path.parent.iterdir()] == [checkpoint.path.name]


def test_it_is_the_same_everywhere(checkpoint: models.Checkpoint, tmp_path: Path) -> None:
    again = models.make(checkpoint.name, tmp_path)
    assert again.path.name == checkpoint.path.name
    assert files(again.path) == files(checkpoint.path)
    assert "model.safetensors" in files(again.path)


def test_a_half_made_one_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "_fill", fail)
    with pytest.raises(KeyboardInterrupt):
        models.make("lfm2", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # the shared expert
def test_every_part_of_the_context_moves_the_output(checkpoint: models.Checkpoint) -> None:
    """A change a thousand times above the tolerance, wherever in 200 tokens one token changes."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    ids = torch.tensor([[3 + 7 * index for index in range(200)]])
    positions = [0, 1, 64, 127, 128, 198]
    changed = ids.repeat(len(positions), 1)
    changed[range(len(positions)), positions] = 2000
    with torch.no_grad():
        last = model.eval()(torch.cat([ids, changed])).logits[:, -1].log_softmax(-1)
    differences = (last[1:] - last[0]).abs().amax(dim=-1)
    assert (differences > 1e-2).all(), dict(zip(positions, differences.tolist(), strict=True))


def test_load_reads_sizes_also_of_a_text_part(tmp_path: Path) -> None:
    sizes = {"vocab_size": 512, "max_position_embeddings": 4096}
    for name, config in {"plain": sizes, "nested": {"text_config": sizes}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        expected = models.Checkpoint(name, tmp_path / name, 512, 4096)
        assert models.load(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "not a readable model configuration"),
        ("{", "not a readable model configuration"),
        ("[1]", "not a readable model configuration"),
        ('{"vocab_size": 512}', "are 512 and None"),
        ('{"vocab_size": "many", "max_position_embeddings": 1}', "are many and 1"),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused(
    tmp_path: Path, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        models.load(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
