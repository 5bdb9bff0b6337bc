"""What the user chose, the pool and flood sizes that follow from it, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hicache_bench.errors import UsageError
from hicache_bench.models import Checkpoint

Policy = Literal["write_through", "write_through_selective", "write_back"]
POLICIES: tuple[Policy, ...] = ("write_through", "write_through_selective", "write_back")

# sglang loads a host hit back only from 10 tokens on (UnifiedRadixCache.load_back_threshold).
MIN_PREFIX = 16
# Generated in the cold and the measured run: the first token already depends on every restored
# byte, the others also on the state as decoding carried it on.
NEW_TOKENS = 4
# sglang's health check caches the prompt [0]; ids 1 and 2 are the tiny models' special tokens.
FIRST_ID = 3
# Clients that send at the same time, in the workload that has several.
CLIENTS = 8
# Requests of one family at most, in any workload.
_REQUESTS = 4


@dataclass(frozen=True)
class Shape:
    """What the user chose: families, tokens of a prefix and of a suffix, seed of the prompts."""

    families: int = 4
    prefix: int = 128
    suffix: int = 72
    seed: int = 7

    @property
    def prompt(self) -> int:
        """Tokens of prefix + suffix."""
        return self.prefix + self.suffix

    @property
    def shared_rate(self) -> float:
        """The token hit rate when every prefix is found and nothing else."""
        return self.prefix / self.prompt


@dataclass(frozen=True)
class Sizes:
    """Pool and flood sizes that make every workload of one server mean what it says.

    device_tokens: Full KV slots on the device. device_states: state slots on the device.
    host_ratio: host slots per device slot, tokens and states alike (--hicache-ratio).
    flood_prompts, flood_length: prompts of one flood and the tokens of each. sentinel: tokens of a
    sentinel. repeats: times that a prompt is sent so that the policy backs it up.
    """

    device_tokens: int
    device_states: int
    host_ratio: int
    flood_prompts: int
    flood_length: int
    sentinel: int
    repeats: int


def sizes_for(shape: Shape, policy: Policy) -> Sizes:
    """Derive the sizes from the shape, so that no choice of numbers overflows a pool."""
    # Two requests run at a time at most; four prompts' worth leaves room for them, for what they
    # load back, and for leaves that are only evicted whole.
    device_tokens = 4 * (shape.prompt + NEW_TOKENS) + 64
    # sglang wants up to three state slots per running request: two of them, and no slot more.
    device_states = 6
    # A flood must use up both pools: a state slot for each prompt, and enough tokens even where a
    # few prompts stand in the tree at a time, because states are what is short. Otherwise KV whose
    # state has been saved and dropped would stay.
    flood_prompts = device_states + 2
    flood_length = math.ceil(device_tokens / (device_states // 2))
    # Long enough to be loaded back, short enough not to be a flood of its own.
    sentinel = MIN_PREFIX
    # write_through_selective backs up a node at its second use.
    repeats = 2 if policy == "write_through_selective" else 1
    # Nothing may ever leave the host: room for all that the run could write there, and half as much
    # again. A request leaves two states at most, at the prompt's end and where decoding stopped.
    families = max(shape.families, CLIENTS)
    requests = _REQUESTS * families + 2 * flood_prompts + 6
    tokens = families * (shape.prefix + _REQUESTS * (shape.suffix + NEW_TOKENS))
    tokens += 2 * flood_prompts * (flood_length + 1) + 6 * 2 * sentinel
    host_ratio = math.ceil(1.5 * max(tokens / device_tokens, 2 * requests / device_states)) + 1
    return Sizes(
        device_tokens, device_states, host_ratio, flood_prompts, flood_length, sentinel, repeats
    )


def check_shape(shape: Shape) -> None:
    """Raise UsageError where a number makes no workload."""
    for option, value, least in (
        ("--families", shape.families, 1),
        ("--prefix", shape.prefix, MIN_PREFIX),
        ("--suffix", shape.suffix, 2),
    ):
        if value < least:
            raise UsageError(
                f"{option} {value}: expected at least {least}; type: "
                f"python -m hicache_bench {option} {least}"
            )


def check(shape: Shape, checkpoint: Checkpoint) -> None:
    """Raise UsageError where the workloads cannot run on the checkpoint."""
    longest = shape.prompt + shape.suffix + NEW_TOKENS
    if longest > checkpoint.max_positions:
        raise UsageError(
            f"--prefix {shape.prefix} --suffix {shape.suffix}: {longest} tokens with a second "
            f"suffix and the generated ones; {checkpoint.path} has {checkpoint.max_positions} "
            "positions; type: python -m hicache_bench --prefix 128 --suffix 72"
        )
    sizes = sizes_for(shape, "write_through")
    # Three sentinels and three probes beside the families and the floods.
    prompts = max(shape.families, CLIENTS) + 2 * sizes.flood_prompts + 6
    if checkpoint.vocab_size - FIRST_ID < prompts:
        raise UsageError(
            f"--families {shape.families}: {prompts} prompts each begin with a token of their own; "
            f"{checkpoint.path} has {checkpoint.vocab_size}; type: "
            "python -m hicache_bench --families 4"
        )
