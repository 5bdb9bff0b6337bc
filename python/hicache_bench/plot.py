"""The result as a picture: what part of the measured prompts each tree found, and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hicache_bench.client import TIERS
from hicache_bench.report import title, write_beside
from hicache_bench.results import Row

# Blue, orange and green of the Okabe-Ito palette: told apart also by colour-blind readers and in
# grey.
_COLOURS = {"device": "#56b4e9", "host": "#e69f00", "storage": "#009e73"}
_COMPUTED = "#e6e6e6"


def figure(rows: Sequence[Row]) -> Figure:
    """A bar for each row, in their order: tokens of the measured prompts by where they came from.

    The bar's parts are percentages of the prompt tokens and add up to 100.
    """
    shape = rows[0].measurement.shape
    drawn = Figure(figsize=(9.0, 1.9 + 0.62 * len(rows)), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    positions = [index + 0.5 * _group(rows, index) for index in range(len(rows))]
    left = [0.0] * len(rows)
    parts = {f"cached, {tier}": [_percent(row, tier) for row in rows] for tier in TIERS}
    parts["computed again"] = [100.0 - 100.0 * row.token_hit_rate for row in rows]
    for (label, widths), colour in zip(parts.items(), [*_COLOURS.values(), _COMPUTED], strict=True):
        axes.barh(
            positions, widths, left=left, height=0.72, color=colour, label=label, edgecolor="white"
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for position, row in zip(positions, rows, strict=True):
        text = f"{row.hits}/{row.families} prefixes found, token hit rate {row.token_hit_rate:.4f}"
        axes.text(1.5, position, text, va="center", fontsize=10)
    axes.axvline(100.0 * shape.shared_rate, color="black", linestyle="--", linewidth=1.0)
    axes.annotate(
        f"share of the prefix: {100.0 * shape.shared_rate:.0f} %",
        xy=(100.0 * shape.shared_rate, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=9,
    )
    axes.set_yticks(positions, [f"{row.model}\n{row.tree.name}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 100.0)
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlabel("tokens of the measured prompts")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(
        f"Shared prefixes found again after leaving the device\n{title(shape, rows[0].policy)}",
        fontsize=11,
    )
    drawn.legend(loc="outside lower center", ncols=len(parts), frameon=False, fontsize=9)
    return drawn


def write(rows: Sequence[Row], path: Path) -> None:
    """Draw `rows` into the PNG file `path`, whole or not at all."""
    drawn = figure(rows)
    # Without the version of matplotlib in it, the same rows give the same file.
    write_beside(
        path, lambda file: drawn.savefig(file, format="png", dpi=150, metadata={"Software": None})
    )


def _percent(row: Row, tier: str) -> float:
    return 100.0 * row.tokens_by_tier[tier] / row.prompt_tokens


def _group(rows: Sequence[Row], index: int) -> int:
    """How many changes of model come before the row: each leaves a gap."""
    return sum(rows[i].model != rows[i - 1].model for i in range(1, index + 1))
