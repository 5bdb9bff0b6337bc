"""What in a server's launch flags stands in the way of a result, and what to type instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicache_bench.url.facts import Facts
from hicache_bench.url.workload import Plan


@dataclass(frozen=True)
class Advice:
    """One thing about the server. refuse: without a change the run would say nothing.

    flag: what to add to the server's command line; empty where there is nothing to add.
    """

    text: str
    flag: str
    refuse: bool

    def __str__(self) -> str:
        return f"{self.text}; launch it with {self.flag}" if self.flag else self.text


def flags(facts: Facts) -> list[Advice]:
    """What is wrong with the launch flags, whatever the workload's size."""
    return list(_flags(facts))


def sizes(facts: Facts, plan: Plan, concurrency: int = 1) -> list[Advice]:
    """What is wrong with the sizes of the server for this workload."""
    return list(_sizes(facts, plan, concurrency))


def _flags(facts: Facts) -> Iterator[Advice]:
    if not facts.radix_cache:
        yield Advice("the prefix cache is off", "no --disable-radix-cache", True)
    if not facts.hybrid:
        yield Advice(
            f"{facts.model} keeps no states beside its KV: it is no hybrid model, and nothing in "
            "it would change",
            "",
            True,
        )
    if not facts.hierarchical:
        yield Advice("there is no hierarchical cache", "--enable-hierarchical-cache", True)
    if not facts.cache_report:
        # sglang 0.5.17's /generate, which is asked here, reports them all the same.
        yield Advice(
            "its OpenAI routes do not report cached tokens, so clients cannot see what is won",
            "--enable-cache-report",
            False,
        )
    if facts.hierarchical and facts.policy == "write_back":
        yield Advice(
            "under write_back nothing is backed up at insert: only a tree with group extended, "
            "which saves states at eviction, finds a prefix again",
            "--hicache-write-policy write_through for any other",
            False,
        )
    if facts.hierarchical and facts.policy == "write_through_selective":
        yield Advice(
            "under write_through_selective a node is backed up at its second use: each prompt is "
            "sent twice",
            "",
            False,
        )
    if facts.hierarchical and facts.layout == "layer_first":
        yield Advice(
            "the host layout layer_first cannot hold states",
            "--hicache-mem-layout page_first_direct --hicache-io-backend direct",
            True,
        )
    if facts.replicas > 1:
        yield Advice(
            f"{facts.replicas} data-parallel replicas have a cache each, and requests of a family "
            "would go to different ones",
            "--dp-size 1",
            True,
        )


def _sizes(facts: Facts, plan: Plan, concurrency: int) -> Iterator[Advice]:
    longest = max(plan.prompt, plan.flood_length) + plan.new_tokens
    if longest > facts.max_input:
        yield Advice(
            f"its longest prompt is {facts.max_input} tokens, the workload's {longest}",
            "a larger --max-total-tokens, or run this with smaller --prefix and --suffix",
            True,
        )
    if (
        facts.hierarchical
        and facts.host_tokens is not None
        and (plan.host_tokens > facts.host_tokens)
    ):
        ratio = -(-plan.host_tokens // facts.device_tokens) + 1
        yield Advice(
            f"its host pool holds {facts.host_tokens} tokens, the workload writes "
            f"{plan.host_tokens}: prefixes would leave the host too",
            f"--hicache-ratio {ratio}",
            True,
        )
    elif facts.hierarchical and facts.host_tokens is None:
        yield Advice(
            f"its host pool is given in bytes (--hicache-size {facts.host_gb:g}), so whether "
            f"{plan.host_tokens} tokens fit is seen only at the end",
            "",
            False,
        )
    if (
        facts.hierarchical
        and facts.host_states is not None
        and (plan.host_states > facts.host_states)
    ):
        assert facts.device_states
        ratio = -(-plan.host_states // facts.device_states) + 1
        yield Advice(
            f"its host pool holds {facts.host_states} states, the workload writes up to "
            f"{plan.host_states}",
            f"--hicache-ratio {ratio} or a larger --max-mamba-cache-size",
            True,
        )
    at_once = plan.prompt * concurrency
    if facts.chunk is not None and facts.chunk < at_once:
        yield Advice(
            f"up to {at_once} tokens are prefilled at once, in chunks of {facts.chunk}, and a "
            "state at a chunk's end lets any tree resume from there: the token hit rate as "
            "released may not be 0",
            f"--chunked-prefill-size {at_once + plan.new_tokens} to keep that out",
            False,
        )
    if facts.vocab is None:
        yield Advice(
            f"{facts.model} is not on this machine, so its vocabulary is not known: token ids "
            f"below {plan.vocab} are used (--vocab)",
            "",
            False,
        )
