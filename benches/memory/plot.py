"""Plots all curves, as SVG and PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from benches.memory.sample import Curve

COLOURS = ("#7f7f7f", "#bcbd22", "#9467bd", "#1f77b4", "#d62728", "#ff7f0e")
MIB = 1 << 20
POINTS = 300  # points per curve: more make a large file and no better picture


def draw(curves: dict[str, dict[str, Curve]], title: str, files: list[Path]) -> None:
    """Draws one panel per kind of file: anonymous memory as a line, mapped file pages on top of it as a shaded area."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "rustload"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(curves), figsize=(4.4 * len(curves), 4.6), sharey=True, layout="constrained", squeeze=False
    )
    names = list(dict.fromkeys(way for ways in curves.values() for way in ways))
    for panel, (kind, ways) in zip(panels[0], curves.items(), strict=True):
        for way, curve in ways.items():
            colour = COLOURS[names.index(way) % len(COLOURS)]
            step = -(-len(curve.times) // POINTS)
            times = curve.times[::step]
            # The maximum of the samples that share a point, so that no peak is lost.
            anonymous = [
                max(curve.anonymous[at : at + step]) / MIB for at in range(0, len(curve.times), step)
            ]
            both = [
                max(map(sum, zip(curve.anonymous[at : at + step], curve.file[at : at + step], strict=True)))
                / MIB
                for at in range(0, len(curve.times), step)
            ]
            panel.plot(times, anonymous, color=colour, label=way, linewidth=1.6)
            panel.fill_between(times, anonymous, both, color=colour, alpha=0.18, linewidth=0)
        panel.set_title(kind)
        panel.set_xlabel("seconds")
        panel.grid(alpha=0.25)
    panels[0][0].set_ylabel("MiB above the imports: line anonymous,\nshaded area mapped file pages")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title)
    for file in files:
        figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
