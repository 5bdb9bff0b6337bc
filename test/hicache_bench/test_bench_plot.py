"""The plot is a readable PNG of the rows' figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_world import CORE, answer, core, extended, family, released, row
from matplotlib.container import BarContainer
from PIL import Image

from hicache_bench import plot
from hicache_bench.results import Row


def widths(rows: list[Row]) -> dict[str, list[float]]:
    """Percentages by label, as drawn."""
    (axes,) = plot.figure(rows).axes
    bars = [made for made in axes.containers if isinstance(made, BarContainer)]
    return {str(made.get_label()): [bar.get_width() for bar in made] for made in bars}


def test_the_bars_are_the_rows_token_shares() -> None:
    mixed = row(CORE, [family(answer(device=100, host=28)), family(answer())])
    drawn = widths([released(), core(), mixed])
    assert drawn["cached, device"] == pytest.approx([0.0, 0.0, 25.0])
    assert drawn["cached, host"] == pytest.approx([0.0, 64.0, 7.0])
    assert drawn["cached, storage"] == pytest.approx([0.0, 0.0, 0.0])
    assert drawn["computed again"] == pytest.approx([100.0, 36.0, 68.0])


def test_it_has_a_title_labels_and_the_shared_part() -> None:
    drawn = plot.figure([released(), core()])
    (axes,) = drawn.axes
    assert "4 families of 128 + 72 tokens, real servers" in drawn.get_suptitle()
    assert axes.get_title() == "lfm2, shared prefix, write_through (dashed: the prefix, 64 %)"
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["v0.5.17 as released", "v0.5.17 + core"]
    texts = [text.get_text() for text in axes.texts]
    assert "4/4 prefixes found, token hit rate 0.6400" in texts


def test_each_model_and_workload_has_a_panel() -> None:
    rows = [released(), core(), extended("leaf"), extended("both"), released("qwen3next")]
    panels = plot.figure(rows).axes
    assert [panel.get_title().partition(" (")[0] for panel in panels] == [
        "lfm2, shared prefix, write_through",
        "lfm2, state made at a leaf, write_back",
        "lfm2, state made on device and host, write_back",
        "qwen3next, shared prefix, write_through",
    ]
    assert [len(panel.get_yticklabels()) for panel in panels] == [2, 1, 1, 1]


def test_the_file_is_a_png_that_shows_the_hits(tmp_path: Path) -> None:
    plot.write([released("lfm2"), core("lfm2"), released("qwen3next")], tmp_path / "hits.png")
    with Image.open(tmp_path / "hits.png") as picture:
        assert picture.format == "PNG"
        assert picture.width >= 1000
        pixels = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    assert pixels is not None
    orange = next(count for count, colour in pixels if colour == (0xE6, 0x9F, 0x00))
    assert orange > 0.03 * sum(count for count, _ in pixels)


def test_the_same_rows_give_the_same_file(tmp_path: Path) -> None:
    plot.write([released(), core()], tmp_path / "one.png")
    plot.write([released(), core()], tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
