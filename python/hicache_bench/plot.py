"""The result as a picture: what part of the measured prompts each tree found, and where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hicache_bench.client import TIERS
from hicache_bench.report import group, title, write_beside
from hicache_bench.results import Row

# Blue, orange and green of the Okabe-Ito palette: told apart also by colour-blind readers and in
# grey.
_COLOURS = {"device": "#56b4e9", "host": "#e69f00", "storage": "#009e73"}
_COMPUTED = "#e6e6e6"


# Panels side by side; inches of a bar, and of a panel's title and axis.
_COLUMNS = 2
_BAR, _FRAME = 0.34, 0.75


def figure(rows: Sequence[Row]) -> Figure:
    """A panel for each model and workload, a bar in it for each tree, in the rows' order: tokens of
    the measured prompts by where they came from.

    A bar's parts are percentages of the prompt tokens and add up to 100.
    """
    panels = [list(some) for _, some in groupby(rows, key=group)]
    columns = min(_COLUMNS, len(panels))
    lines = [panels[index : index + columns] for index in range(0, len(panels), columns)]
    heights = [_FRAME + _BAR * max(map(len, line)) for line in lines]
    drawn = Figure(figsize=(2.0 + 6.0 * columns, 1.3 + sum(heights)), layout="constrained")
    FigureCanvasAgg(drawn)
    grid = drawn.add_gridspec(len(lines), columns, height_ratios=heights)
    for number, panel in enumerate(panels):
        axes = drawn.add_subplot(grid[number // columns, number % columns])
        _panel(axes, panel)
    drawn.suptitle(
        f"Shared prefixes found again after leaving the device\n{title(rows[0].measurement.shape)}",
        fontsize=11,
    )
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    drawn.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    return drawn


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    """The bars of one model and workload, a tree each."""
    positions = range(len(rows))
    left = [0.0] * len(rows)
    parts = {f"cached, {tier}": [_percent(row, tier) for row in rows] for tier in TIERS}
    parts["computed again"] = [100.0 - 100.0 * row.token_hit_rate for row in rows]
    for (label, widths), colour in zip(parts.items(), [*_COLOURS.values(), _COMPUTED], strict=True):
        axes.barh(
            positions, widths, left=left, height=0.8, color=colour, label=label, edgecolor="white"
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for position, row in zip(positions, rows, strict=True):
        text = f"{row.hits}/{row.families} prefixes found, token hit rate {row.token_hit_rate:.4f}"
        axes.text(1.5, position, text, va="center", fontsize=9)
    share = 100.0 * rows[0].measurement.shape.shared_rate
    axes.axvline(share, color="black", linestyle="--", linewidth=1.0)
    axes.set_title(f"{', '.join(group(rows[0]))} (dashed: the prefix, {share:.0f} %)", fontsize=9)
    axes.set_yticks(positions, [row.tree.name for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 100.0)
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def write(rows: Sequence[Row], path: Path) -> None:
    """Draw `rows` into the PNG file `path`, whole or not at all."""
    drawn = figure(rows)
    # Without the version of matplotlib in it, the same rows give the same file.
    write_beside(
        path, lambda file: drawn.savefig(file, format="png", dpi=150, metadata={"Software": None})
    )


def _percent(row: Row, tier: str) -> float:
    return 100.0 * row.tokens_by_tier[tier] / row.prompt_tokens
