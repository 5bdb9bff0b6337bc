"""The shared-prefix workload: the state of a shared prefix is made after its Full KV has left.

For each family a prefix p and two suffixes a, c:

1. cold: p+c on an empty cache; its logprobs are the reference. Then the cache is emptied.
2. warm: p+a. Its Full KV goes to the host whole; its one state is at the end of p+a.
3. flood with unrelated prompts until the families are only on the host.
4. create: p alone. Full KV is on the host, but no state is at the end of p: p is computed again,
   and a state is made there. As released, that state stays on the device only.
5. flood again: what is only on the device is gone.
6. measure: p+c. A hit has at least the prefix cached.

That each flood did its work is observed, not assumed: a sentinel, a prompt sent right before the
flood, is asked for right after it, and must then come from the host alone. The caches go by least
recent use, so what was used before the sentinel has left the device too. One more sentinel, older
than every family, is asked for at the end: it must still be on the host, or the host pool was too
small and misses would mean nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from hicache_bench.client import Answer, Engine
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

Progress = Callable[[str, int, int], None]


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
    """Pool and flood sizes that make the workload mean what it says.

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
    """Derive the sizes from the workload, so that no choice of numbers overflows a pool."""
    # One request runs at a time; four prompts' worth leaves room for it, for what it loads back,
    # and for leaves that are only evicted whole.
    device_tokens = 4 * (shape.prompt + NEW_TOKENS) + 64
    # sglang wants up to three state slots per running request; eight leave some to the tree.
    device_states = 8
    # A flood must use up both pools: a state slot for each prompt, and a quarter more tokens.
    flood_prompts = device_states + 2
    flood_length = math.ceil(1.25 * device_tokens / flood_prompts)
    # Long enough to be loaded back, short enough not to be a flood of its own.
    sentinel = MIN_PREFIX
    # write_through_selective backs up a node at its second use.
    repeats = 2 if policy == "write_through_selective" else 1
    # Nothing may ever leave the host: room for all that the run could write there, and half as much
    # again. A request leaves two states at most, at the prompt's end and where decoding stopped.
    requests = 3 * shape.families + 2 * flood_prompts + 6
    tokens = shape.families * (shape.prefix + 2 * (shape.suffix + NEW_TOKENS))
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
    """Raise UsageError where the workload cannot run on the checkpoint."""
    if shape.prompt + NEW_TOKENS > checkpoint.max_positions:
        raise UsageError(
            f"--prefix {shape.prefix} --suffix {shape.suffix}: {shape.prompt + NEW_TOKENS} tokens "
            f"with the generated ones; {checkpoint.path} has {checkpoint.max_positions} positions; "
            "type: python -m hicache_bench --prefix 128 --suffix 72"
        )
    sizes = sizes_for(shape, "write_through")
    prompts = shape.families + 2 * sizes.flood_prompts + 6  # three sentinels, three probes
    if checkpoint.vocab_size - FIRST_ID < prompts:
        raise UsageError(
            f"--families {shape.families}: {prompts} prompts each begin with a token of their own; "
            f"{checkpoint.path} has {checkpoint.vocab_size}; type: "
            "python -m hicache_bench --families 4"
        )


@dataclass(frozen=True)
class Family:
    """What one family gave: cached tokens of the phases before, and both runs of prefix + c."""

    cold: Answer
    warm_cached: int
    create_cached: int
    measured: Answer


@dataclass(frozen=True)
class Probe:
    """A sentinel asked for again: its tokens, and the tokens found on each tier (device, host,
    storage).
    """

    name: str
    length: int
    tiers: tuple[int, int, int]


@dataclass(frozen=True)
class Measurement:
    """Everything that the workload saw on one server."""

    shape: Shape
    sizes: Sizes
    families: tuple[Family, ...]
    probes: tuple[Probe, ...]


class _Prompts:
    """Random prompts that share nothing: each begins with a token id that no other begins with."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._random = random.Random(seed)
        self._ids = range(FIRST_ID, vocab_size)
        self._first: Iterator[int] = iter(self._random.sample(self._ids, len(self._ids)))

    def unrelated(self, length: int) -> list[int]:
        return [next(self._first), *self._random.choices(self._ids, k=length - 1)]

    def suffixes(self, length: int) -> tuple[list[int], list[int]]:
        """Two continuations that part at once, so that exactly the prefix is shared."""
        one, other = self._random.sample(self._ids, 2)
        rest = self._random.choices(self._ids, k=2 * (length - 1))
        return [one, *rest[: length - 1]], [other, *rest[length - 1 :]]


class SharedPrefix:
    """One run of the workload on one engine."""

    def __init__(
        self,
        engine: Engine,
        shape: Shape,
        sizes: Sizes,
        vocab_size: int,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        self._engine = engine
        self._shape = shape
        self._sizes = sizes
        self._progress = progress
        self._prompts = _Prompts(shape.seed, vocab_size)
        self._done = 0
        self._total = (
            (3 + sizes.repeats) * shape.families + 2 * sizes.flood_prompts + 3 * sizes.repeats + 3
        )

    def run(self) -> Measurement:
        """Run all phases in order, one request at a time. Raises what the engine raises."""
        families = [
            (
                self._prompts.unrelated(self._shape.prefix),
                *self._prompts.suffixes(self._shape.suffix),
            )
            for _ in range(self._shape.families)
        ]
        self._engine.flush()
        cold = [self._send("cold", p + c, NEW_TOKENS) for p, _, c in families]
        self._engine.flush()

        oldest = self._sentinel("warm")
        warm = [self._warm("warm", p + a).cached for p, a, _ in families]
        before_first = self._sentinel("warm")
        self._flood("flood")
        probes = [self._probe("first flood", before_first)]

        create = [self._send("create", p).cached for p, _, _ in families]
        before_second = self._sentinel("create")
        self._flood("flood again")
        probes.append(self._probe("second flood", before_second))

        measured = [self._send("measure", p + c, NEW_TOKENS) for p, _, c in families]
        probes.append(self._probe("host pool", oldest))
        return Measurement(
            self._shape,
            self._sizes,
            tuple(Family(*parts) for parts in zip(cold, warm, create, measured, strict=True)),
            tuple(probes),
        )

    def _send(self, phase: str, ids: list[int], new_tokens: int = 1) -> Answer:
        self._progress(phase, self._done, self._total)
        answer = self._engine.generate(ids, new_tokens)
        self._done += 1
        self._progress(phase, self._done, self._total)
        return answer

    def _warm(self, phase: str, ids: list[int]) -> Answer:
        """Send a prompt as often as the policy needs to back it up; the first answer counts."""
        first = self._send(phase, ids)
        for _ in range(self._sizes.repeats - 1):
            self._send(phase, ids)
        return first

    def _flood(self, phase: str) -> None:
        for _ in range(self._sizes.flood_prompts):
            self._send(phase, self._prompts.unrelated(self._sizes.flood_length))

    def _sentinel(self, phase: str) -> list[int]:
        ids = self._prompts.unrelated(self._sizes.sentinel)
        self._warm(phase, ids)
        return ids

    def _probe(self, name: str, sentinel: list[int]) -> Probe:
        # A whole prompt is never served from the cache, its last token is computed; hence a longer
        # one.
        answer = self._send(f"probe {name}", [*sentinel, *self._prompts.unrelated(4)])
        return Probe(name, len(sentinel), answer.tiers)
