"""The result of a replay as two pictures: what each tree found, and growth with the prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hicache_bench.cache.report import title
from hicache_bench.cache.shapes import SHAPES
from hicache_bench.report import write_beside

# The Okabe-Ito palette: told apart also by colour-blind readers and in grey.
_TIERS = {"device": "#56b4e9", "host": "#e69f00", "computed": "#e6e6e6"}
_LABELS = {"device": "cached, device", "host": "cached, host", "computed": "computed again"}
_TREES = ("#999999", "#0072b2", "#009e73", "#d55e00", "#cc79a7")
_MODELS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def hits(value: dict[str, Any]) -> Figure:
    """A bar for each workload and tree: tokens of its prompts by where they came from, in %."""
    rows = [(index, row) for index, each in enumerate(value["workloads"]) for row in each["rows"]]
    # Above the bars of a workload there is room for its name.
    places = [bar + workload for bar, (workload, _) in enumerate(rows)]
    drawn = Figure(figsize=(9.5, 1.6 + 0.24 * (places[-1] + 1)), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    left = [0.0] * len(rows)
    for tier, colour in _TIERS.items():
        widths = [100.0 * row["tokens"][tier] / row["prompt_tokens"] for _, row in rows]
        axes.barh(places, widths, left=left, height=0.74, color=colour, label=_LABELS[tier])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    named: set[int] = set()
    for place, (index, row) in zip(places, rows, strict=True):
        text = f"{row['prefix_hits']}/{row['eligible']} prefixes, {row['token_hit_rate']:.4f}"
        axes.text(1.5, place, text, va="center", fontsize=8)
        if index not in named:
            name = value["workloads"][index]["name"]
            axes.text(0.0, place - 0.95, name, va="center", fontsize=9, weight="bold")
            named.add(index)
    axes.set_yticks(places, [row["tree"] for _, row in rows])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(places[-1] + 0.6, -1.6)
    axes.set_xlim(0.0, 100.0)
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlabel("tokens of the prompts that count")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(f"What each tree finds again\n{title(value)}", fontsize=10)
    drawn.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return drawn


def growth(value: dict[str, Any]) -> Figure:
    """Against the prefix's length: token hit rate by tree, and bytes of one backup by model."""
    drawn = Figure(figsize=(11.0, 4.4), layout="constrained")
    FigureCanvasAgg(drawn)
    left, right = drawn.subplots(1, 2)
    for entry, colour in zip(value["growth"], _TREES, strict=False):
        lengths = [row["prefix"] for row in entry["rows"]]
        rates = [100.0 * row["token_hit_rate"] for row in entry["rows"]]
        left.plot(lengths, rates, "o-", color=colour, label=entry["tree"])
    left.set_ylabel("token hit rate of the measured prompt")
    left.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    lengths = [row["prefix"] for row in value["growth"][0]["rows"]]
    # What was counted in the last tree that made such backups, in bytes of the published shapes.
    counted = [entry["rows"] for entry in value["growth"] if entry["rows"][0]["prefix_hits"]]
    for shape, colour in zip(SHAPES, _MODELS, strict=True):
        made = [row["copied"]["create"] for row in counted[-1]] if counted else []
        states = [one["slots"]["component"]["mamba"] * shape.state_bytes / 1e6 for one in made]
        full = [one["full_tokens_not_copied_again"] * shape.token_bytes / 1e6 for one in made]
        naive = [a + b for a, b in zip(states, full, strict=True)]
        right.plot(lengths[: len(made)], naive, "--", color=colour, linewidth=1.2)
        right.plot(lengths[: len(made)], states, "o-", color=colour, label=shape.model)
    right.set_yscale("log")
    right.set_ylabel("MB, device to host, for one backup\n(solid: component-only; dashed: naive)")
    for axes in (left, right):
        _lengths(axes, lengths)
    drawn.suptitle("How it grows with the shared prefix", fontsize=11)
    return drawn


def _lengths(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n // 1024}K" if n % 1024 == 0 else str(n) for n in lengths])
    axes.set_xlabel("tokens of the prefix")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def write(drawn: Figure, path: Path) -> None:
    """Write a figure into a PNG file, whole or not at all."""
    # Without the version of matplotlib in it, the same rows give the same file.
    write_beside(
        path, lambda file: drawn.savefig(file, format="png", dpi=150, metadata={"Software": None})
    )
