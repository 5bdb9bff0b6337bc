"""Tiny random hybrid checkpoints, made on the spot, and what is to be known of any checkpoint."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hicache_bench.errors import UsageError

SEED = 20260808
_LAYERS = 4

# Rotary positions need no table in the file, so room for prompts of any size that a CPU can serve
# is free.
_COMMON: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 65536,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Recipe:
    """How one tiny checkpoint is made.

    config: keyword arguments of the transformers configuration class. embedding_std, weight_std:
    standard deviations of the random embedding and matrices. norm: value of every normalisation
    weight; Qwen3-Next stores them minus one, apart from the gated norm.
    """

    config_class: str
    model_class: str
    config: dict[str, Any]
    embedding_std: float
    weight_std: float
    norm: float


# Weights of the usual initialisation (0.02) make the residual stream the last token's embedding and
# nothing else: a lost state would then leave the output unchanged. These are wide enough that every
# token counts (test/hicache_bench/test_models.py holds them to it) and narrow enough that float32
# noise stays near 1e-6.
RECIPES: dict[str, Recipe] = {
    # Short convolutions beside attention: the state is the convolution's window alone.
    "lfm2": Recipe(
        config_class="Lfm2Config",
        model_class="Lfm2ForCausalLM",
        config={
            **_COMMON,
            "norm_eps": 1e-5,
            "block_ff_dim": 128,
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 3,
            "conv_bias": False,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "layer_types": ["conv", "full_attention"] * (_LAYERS // 2),
        },
        embedding_std=0.2,
        weight_std=0.35,
        norm=1.0,
    ),
    # Gated delta-rule layers beside attention: a convolution window and a temporal (recurrent)
    # state.
    "qwen3next": Recipe(
        config_class="Qwen3NextConfig",
        model_class="Qwen3NextForCausalLM",
        config={
            **_COMMON,
            "head_dim": 16,
            "rms_norm_eps": 1e-6,
            "partial_rotary_factor": 0.5,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"] * (_LAYERS // 2),
            "full_attention_interval": 2,  # the same once more, for sglang
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            # sglang's shared expert has no CPU path without AMX, and builds none of size 0.
            "shared_expert_intermediate_size": 0,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
            "tie_word_embeddings": False,
        },
        embedding_std=0.3,
        weight_std=0.15,
        norm=0.0,
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """A model folder. vocab_size and max_positions are counts of token ids and of positions."""

    name: str
    path: Path
    vocab_size: int
    max_positions: int


def names() -> tuple[str, ...]:
    """The tiny checkpoints that `make` knows."""
    return tuple(RECIPES)


def load(path: Path, name: str | None = None) -> Checkpoint:
    """Describe the checkpoint in the folder `path`, from its config.json. Raises UsageError."""
    file = path / "config.json"
    try:
        config = dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{file}: not a readable model configuration ({error}); expected a checkpoint folder "
            f"or one of {', '.join(names())}; type: python -m hicache_bench --model lfm2"
        ) from error
    text = config.get("text_config", config)
    sizes = [text.get(key) for key in ("vocab_size", "max_position_embeddings")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UsageError(
            f"{file}: vocab_size and max_position_embeddings are {sizes[0]} and {sizes[1]}; "
            "expected two positive integers; type: python -m hicache_bench --model lfm2"
        )
    return Checkpoint(name or path.name, path, *sizes)


def make(name: str, folder: Path) -> Checkpoint:
    """The tiny checkpoint `name` under `folder`, made where it is not there yet.

    The same recipe, torch and transformers give the same bytes. Two processes may make it at once.
    """
    recipe = RECIPES[name]
    versions = [metadata.version(package) for package in ("torch", "transformers")]
    key = hashlib.sha256(repr((SEED, recipe, versions)).encode()).hexdigest()[:12]
    path = folder / f"{name}-{key}"
    if not (path / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
        try:
            with _quiet_transformers() as (torch, transformers):
                _write(recipe, beside, torch, transformers)
            _publish(beside, path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return load(path, name)


def _publish(beside: Path, path: Path) -> None:
    beside.chmod(0o755)  # mkdtemp's is for its maker alone
    try:
        beside.rename(path)
    except OSError:
        # Another process may have been first, with the same bytes.
        if not (path / "config.json").exists():
            raise


def _write(recipe: Recipe, path: Path, torch: Any, transformers: Any) -> None:
    config = getattr(transformers, recipe.config_class)(**recipe.config)
    model = getattr(transformers, recipe.model_class)(config).float()
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _fill(name, weight, recipe, random)
    # A shared expert of size 0 leaves empty tensors, which sglang has no parameters for.
    weights = {
        key: value for key, value in model.state_dict().items() if "shared_expert" not in key
    }
    model.save_pretrained(path, state_dict=weights)


def _fill(name: str, weight: Any, recipe: Recipe, random: Any) -> None:
    if weight.dim() >= 2:
        std = recipe.embedding_std if "embed" in name else recipe.weight_std
        weight.normal_(0.0, std, generator=random)
    elif name.endswith("A_log"):
        # The slower the decay, the further back the temporal state remembers.
        weight.uniform_(-4.0, -2.0, generator=random)
    elif name.endswith("dt_bias"):
        weight.zero_()
    elif name.endswith("linear_attn.norm.weight"):
        weight.fill_(1.0)  # the gated norm stores its weight as it is
    else:
        weight.fill_(recipe.norm)


@contextmanager
def _quiet_transformers() -> Iterator[tuple[Any, Any]]:
    """torch and transformers, imported late (seconds) and kept from talking in the block."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    logging = transformers.utils.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield torch, transformers
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
