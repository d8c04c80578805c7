"""Plots bytes per rank over the number of ranks, as SVG and PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STYLES = (
    ("#d62728", "o"),
    ("#1f77b4", "s"),
    ("#9467bd", "^"),
    ("#2ca02c", "D"),
    ("#7f7f7f", "v"),
    ("#bcbd22", "x"),
)


def draw(curves: dict[str, dict[int, float]], size: float, files: list[Path]) -> None:
    """Draws one line per group of ways that read as much, and the share of a rank as a dashed line.

    Args:
        curves: For each way the MiB that the largest rank read or mapped, by the number of ranks.
        size: The size of the model in MiB.
        files: Where to save it.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "rustload"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.8), layout="constrained")
    worlds = sorted({world for curve in curves.values() for world in curve})
    axes.plot(
        worlds, [size / world for world in worlds], "--", color="black", linewidth=1, label="share of a rank"
    )
    for number, (names, curve) in enumerate(_groups(curves, size)):
        colour, marker = STYLES[number % len(STYLES)]
        label = names[0] if len(names) == 1 else "\n".join(_folded(names))
        points = sorted(curve.items())
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=label, linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_ylabel("MiB that the largest rank reads or maps")
    axes.set_title(f"An FSDP2 model of {size:,.0f} MiB in bfloat16")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    for file in files:
        figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def _groups(curves: dict[str, dict[int, float]], size: float) -> list[tuple[list[str], dict[int, float]]]:
    """Ways whose numbers differ by less than a twentieth of the model are one line."""
    groups: list[tuple[list[str], dict[int, float]]] = []
    for name, curve in curves.items():
        for names, other in groups:
            if curve.keys() == other.keys() and all(abs(curve[at] - other[at]) < size / 20 for at in curve):
                names.append(name)
                break
        else:
            groups.append(([name], curve))
    return groups


def _folded(names: list[str]) -> list[str]:
    """The names in lines, with the kinds of files of one way behind each other."""
    ways: dict[str, list[str]] = {}
    for name in names:
        way, _, kind = name.partition(", ")
        ways.setdefault(way, []).append(kind)
    return [f"{way}: {', '.join(filter(None, kinds))}" if any(kinds) else way for way, kinds in ways.items()]
