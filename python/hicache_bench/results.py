"""One row of the result: what a measurement comes to, and whether that is as expected."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_bench.client import TIERS, Answer
from hicache_bench.copied import Copied
from hicache_bench.expect import Expected, expected_hits
from hicache_bench.measurement import Family, Measurement
from hicache_bench.trees import Tree
from hicache_bench.workload import Policy
from hicache_bench.workloads import Workload

# A restored state gives the same float32 arithmetic but for the order of sums: differences near
# 1e-6 were seen with every byte restored, above 1e-1 with one copy lost.
LOGPROB_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Row:
    """A measurement with the checkpoint, tree, policy and workload that it belongs to.

    version: sglang's version as the server reports it. start_seconds, run_seconds: wall time of the
    server's start, which its workloads share, and of the workload. copied: bytes that the server
    copied for the workload, all of its requests; None where that is not known.
    """

    model: str
    tree: Tree
    policy: Policy
    workload: Workload
    version: str
    measurement: Measurement
    start_seconds: float
    run_seconds: float
    copied: Copied | None = None

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
        """Largest absolute logprob difference between an answer and its prompt's cold run."""
        return max(logprob_difference(*pair) for f in self.measurement.families for pair in f.pairs)

    @property
    def changed_outputs(self) -> int:
        """Families with an answer of other tokens than in its prompt's cold run."""
        return sum(
            any(cold.tokens != later.tokens for cold, later in family.pairs)
            for family in self.measurement.families
        )

    @property
    def expected_hits(self) -> Expected:
        """What the tree must find."""
        return expected_hits(self.workload, self.policy, self.tree, self.version)


def logprob_difference(cold: Answer, measured: Answer) -> float:
    """Largest absolute difference over the generated tokens, in nats."""
    return max(abs(a - b) for a, b in zip(cold.logprobs, measured.logprobs, strict=True))


def failed_expectations(row: Row) -> list[str]:
    """One line for each thing that is not as it should be; empty when all is well."""
    where = f"{row.model}, {row.workload.label}, {row.policy}, {row.tree.name}"
    return [f"{where}: {line}" for check in (_workload, _hits, _outputs) for line in check(row)]


def _workload(row: Row) -> list[str]:
    """The workload must have made the situation that it measures."""
    lines = []
    for index, family in enumerate(row.measurement.families):
        warm = sum(cold.cached for cold, _ in family.pairs)
        if warm:
            lines.append(f"family {index}: the cold run found {warm} cached tokens; expected 0")
        for step in family.steps:
            device, host, storage = step.tiers
            if step.expected is not None and (*step.expected, 0) != step.tiers:
                lines.append(
                    f"family {index}: the request for {step.what} found {device} tokens on the "
                    f"device, {host} on the host, {storage} in storage; expected "
                    f"{step.expected[0]}, {step.expected[1]} and none"
                )
        if family.one_pass is False:
            lines.append(
                f"family {index}: the prompts of one call were not computed in one forward pass, "
                "so their states did not come in one step"
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
    if row.expected_hits == "none" and row.hits:
        return [f"{row.hits}/{row.families} prefixes found; expected none"]
    if row.expected_hits != "all":
        return []
    lines = []
    if row.hits < row.families:  # all found means a rate of at least prefix / (prefix + suffix)
        lines.append(
            f"{row.hits}/{row.families} prefixes found, token hit rate {row.token_hit_rate:.4f}; "
            f"expected all, {row.measurement.shape.shared_rate:.4f}"
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
