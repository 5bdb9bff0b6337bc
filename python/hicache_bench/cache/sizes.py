"""The sizes of a replay: pools, prompts, workloads. Plain numbers, sent to the workers as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hicache_bench.errors import UsageError


@dataclass(frozen=True)
class Pools:
    """What the cache is given.

    device_tokens: Full KV slots on the device. device_states: Mamba state slots on the device.
    host_ratio: host slots for each device slot, of both. page: tokens of a page, also the distance
    of places where a state may be kept. chunk: most tokens of one prefill step. head_dim: elements
    of a key, of which a token has eight times as many bytes.

    The defaults are those of the upstream report (page 64, 131,072 tokens, ratio 12, chunked
    prefill 16,384); it does not say how many states the device held, 128 is enough for every
    request of the workload.
    """

    device_tokens: int = 131_072
    device_states: int = 128
    host_ratio: float = 12.0
    page: int = 64
    chunk: int = 16_384
    policy: str = "write_through"
    head_dim: int = 8


@dataclass(frozen=True)
class SharedPrefix:
    """Families of prompts that share a prefix.

    families: number of prefixes. prefix, suffix: tokens. common: tokens that every prompt of the
    run begins with, the flood's too; part of the prefix. left: families that the floods
    leave on the device, in part at least. newest_first: whether the measured prompts go through the
    families backwards, so that what was left is asked for before it is evicted. flood: tokens of
    one unrelated prompt.
    """

    families: int = 10
    prefix: int = 6_400
    suffix: int = 3_600
    common: int = 0
    left: int = 0
    newest_first: bool = False
    flood: int = 5_000
    seed: int = 7


Made = Literal[
    "in flight",
    "between chunks",
    "at once",
    "leaf",
    "leaf to the end",
    "internal",
    "both tiers",
    "host states full",
    "host KV full",
]


@dataclass(frozen=True)
class OneState:
    """Families of which each must keep one state, that at the end of its prefix.

    made: when it is made. a is prefix + `suffix` tokens, b is prefix + `later`, which brings the
    state because it parts from a there.

    in flight: by b right after a, whose backup is still being copied. between chunks: by b between
    the two chunks of a. at once: by b right after a, with nothing in the way. leaf: by the bare
    prefix, before a; then short prompts take the state's place on the device. leaf to the end: by
    the bare prefix, and nothing comes below it. internal: by the bare prefix after a, which is then
    used again; then short prompts take the state's place. both tiers: by b, when a has been on the
    host and was loaded back. host states full: by b, while all that is free of the
    host's states is taken. host KV full: by the bare prefix, while all that is free of the host's
    KV is taken.
    """

    made: Made
    families: int = 10
    prefix: int = 6_400
    suffix: int = 3_600
    later: int = 3_600
    flood: int = 5_000
    seed: int = 23


@dataclass(frozen=True)
class Chat:
    """Conversations that take turns, all below one system prompt.

    Each turn adds `message` tokens of the user's, and `answer` tokens that were generated, to the
    prompt of the next one.
    """

    conversations: int = 40
    turns: int = 8
    system: int = 2_000
    message: int = 300
    answer: int = 500
    seed: int = 11


@dataclass(frozen=True)
class Deep:
    """Conversations of many turns, each with a system prompt of its own.

    The message of each turn but the first is edited once, right after it was answered. slow: while
    the copies of the turn are still under way. measured: the turns, after the first, that are
    edited again in the end.
    """

    conversations: int = 4
    turns: int = 16
    measured: int = 6
    slow: bool = False
    system: int = 1_000
    message: int = 300
    answer: int = 500
    flood: int = 12_000
    seed: int = 19


@dataclass(frozen=True)
class Tenants:
    """Tenants with a system prompt each, asked by Zipf's law: the r-th has weight 1 / r**skew.

    least, most: tokens of a system prompt. question: most tokens of what follows it.
    """

    tenants: int = 48
    requests: int = 240
    least: int = 2_000
    most: int = 8_000
    question: int = 2_000
    skew: float = 1.0
    seed: int = 13


@dataclass(frozen=True)
class Inserts:
    """Inserts that trigger nothing: nodes of the tree, inserts of a batch, batches of each tree."""

    nodes: int
    batch: int = 250
    batches: int = 40
    targets: int = 500
    seed: int = 17


def check(pools: Pools, shape: SharedPrefix) -> None:
    """Raise UsageError where the numbers make no workload."""
    again = "type: python -m hicache_bench cache --help"
    for option, value, least in (
        ("--families", shape.families, 1),
        ("--suffix", shape.suffix, 2 * pools.page),
    ):
        if value < least:
            raise UsageError(f"{option} {value}: expected at least {least}; {again}")
    if shape.prefix < pools.page or shape.prefix % pools.page:
        raise UsageError(
            f"--prefix {shape.prefix}: expected a positive multiple of the page size {pools.page}, "
            f"where a state can be kept; {again}"
        )
    if not 0 <= shape.common < shape.prefix or shape.common % pools.page:
        raise UsageError(
            f"--common {shape.common}: expected a multiple of {pools.page} below the prefix "
            f"{shape.prefix}; {again}"
        )
    prompt = shape.prefix + shape.suffix
    if pools.device_tokens < 2 * (prompt + pools.page):
        raise UsageError(
            f"--device-tokens {pools.device_tokens}: prompts of {prompt} tokens need at least "
            f"{2 * (prompt + pools.page)}; {again}"
        )
    if pools.device_tokens % pools.page:
        raise UsageError(
            f"--device-tokens {pools.device_tokens}: expected a multiple of the page size "
            f"{pools.page}; {again}"
        )
