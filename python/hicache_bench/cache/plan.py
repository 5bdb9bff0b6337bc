"""What a run does: the workloads in the order of the table, and what each tree must find there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from hicache_bench.cache.sizes import (
    Chat,
    Deep,
    Inserts,
    Made,
    OneState,
    Pools,
    SharedPrefix,
    Tenants,
)
from hicache_bench.trees import Group

# One later release is enough, with the tree core that it starts with.
TREES = ("v0.5.17:base", "v0.5.17:core", "v0.5.17:extended", "v0.5.23:base@rust")

UPSTREAM_COMMON = 1_024  # tokens; see `_shared_prefix`
GROWTH = [1024 << power for power in range(8)]  # 1K to 128K

Finds = Literal["all", "none", "one"]
"""How many of the prefixes a tree must find: each, not one, or at most one."""

# What is found by group. What a later release ("peer") finds is measured and not judged, but for
# the one workload in which none is known to find anything.
_CORE: Mapping[Group, Finds] = {"released": "none", "core": "all", "extended": "all"}
_EXTENDED: Mapping[Group, Finds] = {"released": "none", "core": "none", "extended": "all"}
_EVERY: Mapping[Group, Finds] = {"released": "all", "core": "all", "extended": "all"}


@dataclass(frozen=True)
class Workload:
    """One workload: its name in the table, the worker's command, its sizes.

    finds: what a tree of a group must find; a group that is not there is not judged. left:
    families that may be on the device, in part, when the measured requests come.
    """

    name: str
    command: str
    pools: Pools
    shape: SharedPrefix | OneState | Deep | Chat | Tenants
    note: str
    finds: Mapping[Group, Finds]
    left: int = 0


@dataclass(frozen=True)
class Plan:
    """What a run does.

    growth: prefix lengths in tokens, empty for none. inserts: sizes of the insert trees. others:
    whether there is more than the shared-prefix workload.
    """

    pools: Pools
    shape: SharedPrefix
    growth: Sequence[int] = ()
    inserts: Sequence[Inserts] = ()
    others: bool = True

    def workloads(self) -> list[Workload]:
        """The workloads in the order of the table."""
        plain, *more = _shared_prefix(self.pools, self.shape)
        if not self.others:
            return [plain]
        return [
            plain,
            *more,
            *_write_through(self.pools, self.shape),
            *_write_back(self.pools, self.shape),
            *_deep(self.pools),
            *_traffic(self.pools),
        ]


def _shared_prefix(pools: Pools, shape: SharedPrefix) -> list[Workload]:
    # Less than a flood's prompts, which begin with it too.
    common = min(UPSTREAM_COMMON, shape.prefix - pools.page, shape.flood // 2)
    common = common // pools.page * pools.page
    as_upstream = replace(shape, common=common, left=1, newest_first=True)
    return [
        Workload(
            "shared prefix",
            "shared_prefix",
            pools,
            shape,
            "each flood goes on until nothing of a family is on the device",
            _CORE,
        ),
        Workload(
            "shared prefix, one left",
            "shared_prefix",
            pools,
            as_upstream,
            f"all prompts begin with the same {common} tokens, and each flood leaves one family "
            "on the device, which is asked for first",
            {**_CORE, "released": "one"},
            left=1,
        ),
    ]


def _write_through(pools: Pools, shape: SharedPrefix) -> list[Workload]:
    """The moments at which group core does not back a state up."""
    later = max(1, shape.suffix // 4)  # so short that all families fit on the device at once
    chunk = (shape.prefix + shape.suffix // 2) // pools.page * pools.page
    return [
        _moment(
            "state in flight",
            "in flight",
            pools,
            shape,
            "the state comes while its node's copy to the host is under way",
        ),
        _moment(
            "state between chunks",
            "between chunks",
            replace(pools, chunk=chunk),
            shape,
            f"chunks of {chunk}; the insert that brings the state orders its node's KV copy itself",
            later=later,
        ),
        _moment(
            "state at the threshold",
            "at once",
            replace(pools, policy="write_through_selective"),
            shape,
            "write_through_selective; the insert that brings the state is the node's second use",
        ),
        _moment(
            "host states full",
            "host states full",
            pools,
            shape,
            "the host has no room for a state when it is made, and has some a little later",
            later=later,
        ),
        _moment(
            "host KV full",
            "host KV full",
            pools,
            shape,
            "the host has no room for KV when a prefix is new, and has some a little later",
        ),
    ]


def _write_back(pools: Pools, shape: SharedPrefix) -> list[Workload]:
    """Where a node is when its state is made; under write-back none is saved before eviction."""
    back = replace(pools, policy="write_back")
    families = _fitting(pools, shape)
    few = replace(back, device_states=min(back.device_states, 4 * families + 8))
    return [
        Workload(
            "write-back, node on the host",
            "shared_prefix",
            back,
            shape,
            "the shared-prefix workload: the KV is on the host alone when the state is made",
            {**_EXTENDED, "peer": "none"},
        ),
        _moment(
            "write-back, node on both tiers",
            "both tiers",
            back,
            shape,
            "the KV is on the host and was loaded back when the state is made",
        ),
        _moment(
            "write-back, node a leaf",
            "leaf",
            few,
            shape,
            f"{few.device_states} device states; then the leaf gets a child, and the state is "
            "evicted before the KV",
        ),
        _moment(
            "write-back, node internal",
            "internal",
            few,
            shape,
            f"{few.device_states} device states; the state is evicted before the KV",
        ),
        _moment(
            "write-back, leaf to the end",
            "leaf to the end",
            back,
            shape,
            "nothing comes below the leaf, which is saved whole when it is evicted",
            finds=_EVERY,
        ),
    ]


def _deep(pools: Pools) -> list[Workload]:
    few = replace(pools, device_states=24)

    def deep(name: str, note: str, finds: Mapping[Group, Finds], **more: Any) -> Workload:
        policy = more.pop("policy", pools.policy)
        return Workload(name, "deep", replace(few, policy=policy), Deep(**more), note, finds)

    return [
        deep("deep conversations", "24 device states evict each other", _CORE),
        deep(
            "deep conversations, slow copies",
            "the same, and each edit comes while its turn's copy is under way",
            _EXTENDED,
            slow=True,
        ),
        deep("deep conversations, write-back", "the same", _EXTENDED, policy="write_back"),
    ]


def _traffic(pools: Pools) -> list[Workload]:
    return [
        Workload("chat", "chat", pools, Chat(), "conversations in turns, one system prompt", {}),
        Workload(
            "tenants",
            "tenants",
            pools,
            Tenants(),
            "system prompts of many tenants, asked by Zipf's law; hits count from the third "
            "request of a tenant on",
            {"core": "all", "extended": "all"},
        ),
    ]


def _moment(
    name: str,
    made: Made,
    pools: Pools,
    shape: SharedPrefix,
    note: str,
    *,
    finds: Mapping[Group, Finds] = _EXTENDED,
    later: int | None = None,
) -> Workload:
    sizes = OneState(
        made,
        families=_fitting(pools, shape),
        prefix=shape.prefix,
        suffix=shape.suffix,
        later=shape.suffix if later is None else later,
        flood=shape.flood,
    )
    return Workload(name, "one_state", pools, sizes, note, finds)


def _fitting(pools: Pools, shape: SharedPrefix) -> int:
    """Families that are on the device at the same time, with a prompt of the next one."""
    prompt = shape.prefix + shape.suffix
    own = prompt + shape.suffix // 4 + 2 * pools.page
    return max(1, min(shape.families, (pools.device_tokens - prompt) // own))


def sent(workload: Workload) -> dict[str, Any]:
    """The arguments of the worker's command."""
    return {"pools": asdict(workload.pools), "shape": asdict(workload.shape)}
