"""The workloads that run on a server: how the state of a shared prefix comes to be.

In each, prompts are made of a prefix p and suffixes a, b, c of its own family. A state is made at
the end of p; it, and all that goes with it, leaves the device; then p + c is asked for. They differ
in where the node of p is when its state is made, and so in who saves that state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_bench.errors import UsageError
from hicache_bench.workload import CLIENTS, POLICIES, Policy, Shape


@dataclass(frozen=True)
class Request:
    """A prompt of a family, by its parts ("pa": the prefix and then suffix a).

    device, host: the parts that must be found there, "" for none.
    """

    parts: str
    device: str = ""
    host: str = ""

    @property
    def what(self) -> str:
        """The prompt in words."""
        words = {"p": "the prefix", "a": "suffix a", "b": "suffix b", "c": "suffix c"}
        return " + ".join(words[part] for part in self.parts)

    def expected(self, shape: Shape) -> tuple[int, int]:
        """Tokens that must be found on the device and on the host."""
        return _tokens(self.device, shape), _tokens(self.host, shape)


def _tokens(parts: str, shape: Shape) -> int:
    return sum(shape.prefix if part == "p" else shape.suffix for part in parts)


@dataclass(frozen=True)
class Workload:
    """One way to make the states.

    label: its name in tables. policies: those under which it means something. first: requests
    before a first flood, which leaves them on the host only; without any there is no such flood.
    create: the requests that make the state, family by family. together: they are sent in one call,
    and must end in one step of the scheduler. clients: how many send at the same time, each a
    family of its own; 1: families take turns, one request at a time.
    """

    name: str
    label: str
    policies: tuple[Policy, ...]
    create: tuple[Request, ...]
    first: tuple[Request, ...] = ()
    together: bool = False
    clients: int = 1

    def families(self, shape: Shape) -> int:
        """Number of families."""
        return shape.families if self.clients == 1 else self.clients


WORKLOADS = (
    # Full KV goes to the host whole with p + a. The state of p comes when it is there alone.
    Workload(
        "shared-prefix",
        "shared prefix",
        ("write_through", "write_through_selective"),
        first=(Request("pa"),),
        create=(Request("p"),),
    ),
    # The long one first: its leaf is being written when p splits it, and brings the state.
    Workload(
        "same-step",
        "prompt and prefix in one step",
        ("write_through",),
        create=(Request("pa"), Request("p")),
        together=True,
    ),
    # Under write-back nothing is copied before it is evicted.
    Workload(
        "leaf",
        "state made at a leaf",
        ("write_back",),
        create=(Request("p"), Request("pa", device="p")),
    ),
    # The last request keeps the state of p the older one: it is evicted while p has a child.
    Workload(
        "internal",
        "state made at an internal node",
        ("write_back",),
        create=(Request("pa"), Request("p"), Request("pb", device="p")),
    ),
    Workload(
        "host",
        "state made on the host only",
        ("write_back",),
        first=(Request("pa"),),
        create=(Request("p"),),
    ),
    # p + a is loaded back with its state, so that p is on both tiers when its own is made.
    Workload(
        "both",
        "state made on device and host",
        ("write_back",),
        first=(Request("pa"),),
        create=(Request("pab", host="pa"), Request("p")),
    ),
    Workload(
        "clients",
        f"{CLIENTS} clients at once",
        ("write_through", "write_back"),
        create=(Request("pa"), Request("p"), Request("pb")),
        clients=CLIENTS,
    ),
)
SHARED_PREFIX = WORKLOADS[0]


def names() -> tuple[str, ...]:
    """The names of all workloads."""
    return tuple(workload.name for workload in WORKLOADS)


def chosen(wanted: Sequence[str], policies: Sequence[Policy]) -> tuple[Workload, ...]:
    """The workloads of these names that run under one of the policies; no name: all of them.

    Raises UsageError for a name that is none, and where a policy and a name do not go together.
    """
    for name in wanted:
        if name not in names():
            raise UsageError(
                f"--workload {name}: expected one of {', '.join(names())}; type: "
                "python -m hicache_bench --workload shared-prefix"
            )
    found = tuple(each for each in WORKLOADS if not wanted or each.name in wanted)
    for each in found:
        if wanted and not set(each.policies) & set(policies):
            raise UsageError(
                f"--workload {each.name} --policy {policies[0]}: it means nothing under that "
                f"policy; expected {' or '.join(each.policies)}; type: python -m hicache_bench "
                f"--workload {each.name} --policy {each.policies[0]}"
            )
    return tuple(each for each in found if set(each.policies) & set(policies))


def check_policies(policy: str | None) -> tuple[Policy, ...]:
    """The policies to run: the one that was asked for, or both that the workloads are made for."""
    if policy is None:
        return ("write_through", "write_back")
    return tuple(each for each in POLICIES if each == policy)
