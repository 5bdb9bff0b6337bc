"""What a workload saw on one server."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_bench.client import Answer
from hicache_bench.workload import Shape, Sizes


@dataclass(frozen=True)
class Step:
    """A request before the measured one.

    what: its prompt in words. tiers: cached tokens found on the device, on the host, in storage.
    expected: tokens that must be found on the device and on the host for the workload to mean what
    it says; None where that depends on what other clients did.
    """

    what: str
    tiers: tuple[int, int, int]
    expected: tuple[int, int] | None


@dataclass(frozen=True)
class Family:
    """What one family gave.

    cold: the measured prompt on an empty cache. steps: the requests before the measured one.
    measured: the prompt whose hit counts. compared: more pairs of a cold and a later answer to one
    prompt. one_pass: whether requests that were sent together were computed in one forward pass;
    None where none were.
    """

    cold: Answer
    steps: tuple[Step, ...]
    measured: Answer
    compared: tuple[tuple[Answer, Answer], ...] = ()
    one_pass: bool | None = None

    @property
    def pairs(self) -> tuple[tuple[Answer, Answer], ...]:
        """All pairs of a cold and a later answer to one prompt, the measured one first."""
        return ((self.cold, self.measured), *self.compared)


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
    """Everything that one workload saw on one server."""

    shape: Shape
    sizes: Sizes
    families: tuple[Family, ...]
    probes: tuple[Probe, ...]
