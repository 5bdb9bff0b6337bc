"""One row of the result: what a measurement comes to, and whether that is as expected."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_bench.client import TIERS, Answer
from hicache_bench.trees import Tree
from hicache_bench.workload import Family, Measurement, Policy

# A restored state gives the same float32 arithmetic but for the order of sums: differences near
# 1e-6 were seen with every byte restored, above 1e-1 with one copy lost.
LOGPROB_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Row:
    """A measurement with the checkpoint, tree and policy that it belongs to.

    version: sglang's version as the server reports it. start_seconds, run_seconds: wall time of the
    server's start and of the workload.
    """

    model: str
    tree: Tree
    policy: Policy
    version: str
    measurement: Measurement
    start_seconds: float
    run_seconds: float

    @property
    def families(self) -> int:
        """Number of families."""
        return len(self.measurement.families)

    @property
    def hits(self) -> int:
        """Families whose whole prefix was found."""
        return sum(self.is_hit(family) for family in self.measurement.families)

    def is_hit(self, family: Family) -> bool:
        """Whether the measured prompt's cached tokens cover the prefix."""
        return family.measured.cached >= self.measurement.shape.prefix

    @property
    def hits_by_tier(self) -> dict[str, int]:
        """Hits by the tier that gave most of the prefix; the keys are TIERS."""
        counts = dict.fromkeys(TIERS, 0)
        for family in self.measurement.families:
            if self.is_hit(family):
                tiers = family.measured.tiers
                counts[TIERS[tiers.index(max(tiers))]] += 1
        return counts

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all measured prompts."""
        return sum(family.measured.prompt for family in self.measurement.families)

    @property
    def tokens_by_tier(self) -> dict[str, int]:
        """Cached tokens of the measured prompts by tier; the keys are TIERS."""
        answers = [family.measured for family in self.measurement.families]
        return {
            tier: sum(answer.tiers[index] for answer in answers) for index, tier in enumerate(TIERS)
        }

    @property
    def token_hit_rate(self) -> float:
        """Cached over prompt tokens of the measured prompts."""
        return sum(self.tokens_by_tier.values()) / self.prompt_tokens

    @property
    def worst_logprob_difference(self) -> float:
        """Largest absolute logprob difference between a measured run and its cold run."""
        return max(logprob_difference(f.cold, f.measured) for f in self.measurement.families)

    @property
    def changed_outputs(self) -> int:
        """Families that generated other tokens than in their cold run."""
        return sum(f.cold.tokens != f.measured.tokens for f in self.measurement.families)

    @property
    def expects_hits(self) -> bool:
        """Whether every prefix should be found: the tree can do it, and the policy asks for it.

        Under write-back nothing is backed up at insert, so core changes nothing there (design
        section 5).
        """
        return self.tree.incremental and self.policy != "write_back"


def logprob_difference(cold: Answer, measured: Answer) -> float:
    """Largest absolute difference over the generated tokens, in nats."""
    return max(abs(a - b) for a, b in zip(cold.logprobs, measured.logprobs, strict=True))


def failed_expectations(row: Row) -> list[str]:
    """One line for each thing that is not as it should be; empty when all is well."""
    where = f"{row.model}, {row.tree.name}"
    return [f"{where}: {line}" for check in (_workload, _hits, _outputs) for line in check(row)]


def _workload(row: Row) -> list[str]:
    """The workload must have made the situation that it measures."""
    lines = []
    for index, family in enumerate(row.measurement.families):
        for phase, cached in (
            ("cold run", family.cold.cached),
            ("warm request", family.warm_cached),
            ("request for the bare prefix", family.create_cached),
        ):
            if cached:
                lines.append(
                    f"family {index}: the {phase} found {cached} cached tokens; expected 0"
                )
    for probe in row.measurement.probes:
        device, host, storage = probe.tiers
        if host + storage < probe.length:
            lines.append(
                f"{probe.name}: of the sentinel's {probe.length} tokens {device} came from the "
                f"device, {host} from the host, {storage} from storage; expected none from the "
                "device and all from below it; the flood or the host pool is too small, and the "
                "hits mean nothing"
            )
    return lines


def _hits(row: Row) -> list[str]:
    if not row.expects_hits:
        if row.hits:
            return [f"{row.hits}/{row.families} prefixes found under {row.policy}; expected none"]
        return []
    lines = []
    if row.hits < row.families:  # all found means a rate of at least prefix / (prefix + suffix)
        lines.append(
            f"{row.hits}/{row.families} prefixes found under {row.policy}, token hit rate "
            f"{row.token_hit_rate:.4f}; expected all, {row.measurement.shape.shared_rate:.4f}"
        )
    elsewhere = row.hits - row.hits_by_tier["host"]
    if elsewhere:
        lines.append(f"{elsewhere} of {row.hits} hits did not come from the host; expected all to")
    return lines


def _outputs(row: Row) -> list[str]:
    lines = []
    if row.worst_logprob_difference > LOGPROB_TOLERANCE:
        lines.append(
            f"logprobs differ from the cold run by {row.worst_logprob_difference:.1e}; expected "
            f"at most {LOGPROB_TOLERANCE:.0e}: what was restored is not what was saved"
        )
    if row.changed_outputs:
        lines.append(
            f"{row.changed_outputs} of {row.families} families generated other tokens than in the "
            "cold run"
        )
    return lines
