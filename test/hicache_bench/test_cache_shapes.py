"""The published shapes, against the configuration classes that they say they are from."""

from __future__ import annotations

import ast
from pathlib import Path

import transformers

from hicache_bench.cache import judge
from hicache_bench.cache.shapes import SHAPES, Shape
from patchseries import trees


def shape(model: str) -> Shape:
    return next(found for found in SHAPES if found.model.startswith(model))


def test_qwen3_next_is_what_transformers_has() -> None:
    config = transformers.Qwen3NextConfig()
    found = shape("Qwen3-Next")
    assert config.layer_types.count("full_attention") == found.full_layers
    assert config.layer_types.count("linear_attention") == found.state_layers
    assert found.kv_elements == 2 * config.num_key_value_heads * config.head_dim
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    assert found.conv_elements == (2 * keys + values) * (config.linear_conv_kernel_dim - 1)
    assert found.temporal_elements == values * config.linear_key_head_dim


def test_qwen3_next_at_128k_weighs_what_design_md_says() -> None:
    backup = next(
        model
        for model in judge.at_published_shapes(128 * 1024)
        if model["model"].startswith("Qwen3-Next")
    )
    assert round(backup["component_only_bytes"] / 1e6) == 77
    assert round((backup["naive_bytes"] - backup["component_only_bytes"]) / 1e9, 1) == 3.2


def test_nemotron_h_is_what_sglang_has() -> None:
    source = Path("sglang/srt/configs/nemotron_h.py")
    module = ast.parse((trees.cached("v0.5.17", "base") / source).read_text())
    init = next(
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    defaults = {
        argument.arg: ast.literal_eval(value)
        for argument, value in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
        if isinstance(value, ast.Constant)
    }
    found = shape("Nemotron-H")
    pattern = defaults["hybrid_override_pattern"]
    assert (pattern.count("M"), pattern.count("*")) == (found.state_layers, found.full_layers)
    assert found.kv_elements == 2 * defaults["num_key_value_heads"] * defaults["head_dim"]
    inner = defaults["mamba_num_heads"] * defaults["mamba_head_dim"]
    groups = defaults["mamba_n_groups"] * defaults["ssm_state_size"]
    assert found.conv_elements == (inner + 2 * groups) * (defaults["mamba_d_conv"] - 1)
    assert found.temporal_elements == inner * defaults["ssm_state_size"]


def test_the_four_models_are_there_with_sources() -> None:
    sources = {found.model: found.source for found in SHAPES}
    assert list(sources) == [
        "Qwen3-Next-80B-A3B",
        "Kimi-Linear-48B-A3B",
        "Nemotron-H-8B",
        "LFM2-1.2B",
    ]
    assert all(sources.values())
