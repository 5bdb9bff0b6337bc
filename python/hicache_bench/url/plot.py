"""Runs on a user's server as a picture: what part of the measured prompts each found, and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hicache_bench.report import write_beside
from hicache_bench.url.report import title

# The Okabe-Ito palette: told apart also by colour-blind readers and in grey.
_COLOURS = {"device": "#56b4e9", "host": "#e69f00", "storage": "#009e73", "computed": "#e6e6e6"}


def figure(values: Sequence[dict[str, Any]]) -> Figure:
    """A bar for each run, in their order; its parts are percentages of the prompt tokens."""
    drawn = Figure(figsize=(9.0, 2.0 + 0.62 * len(values)), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    places = list(range(len(values)))
    left = [0.0] * len(values)
    for tier, colour in _COLOURS.items():
        widths = [100.0 * value["tokens"][tier] / value["prompt_tokens"] for value in values]
        label = "computed again" if tier == "computed" else f"cached, {tier}"
        axes.barh(places, widths, left=left, height=0.7, color=colour, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, value in zip(places, values, strict=True):
        text = (
            f"{value['prefix_hits']}/{value['families']} prefixes found, "
            f"token hit rate {value['token_hit_rate']:.4f}"
        )
        axes.text(1.5, place, text, va="center", fontsize=10)
    axes.set_yticks(places, [value["name"] for value in values])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 100.0)
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlabel("tokens of the measured prompts")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(
        f"Shared prefixes found again after leaving the device\n{title(values[0])}", fontsize=10
    )
    drawn.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return drawn


def write(values: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw into the PNG file `path`, whole or not at all."""
    drawn = figure(values)
    # Without the version of matplotlib in it, the same rows give the same file.
    write_beside(
        path, lambda file: drawn.savefig(file, format="png", dpi=150, metadata={"Software": None})
    )
