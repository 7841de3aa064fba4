#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the figures of `attocl bench --json`: for every row the share of the memory floor that it reaches.

    plot.py FIGURES.json PICTURE        PICTURE ends in .svg, .png or .pdf; needs matplotlib

A bar is this library, marks are the peers of --compare; 1.0 is the time that moving the bytes takes. Rows of
matrices, whose time is that of arithmetic, and calls too short to tell are left out.
"""
import json
import sys

PEERS = {"torch_ms": ("PyTorch", "o", "#c44e52"), "attorch_ms": ("attorch", "D", "#8172b3")}


def rows_of(figures):
    """Rows that say something about memory, in the order of the table."""
    return [row for row in figures["rows"]
            if "ms" in row and "tflop_per_s" not in row and not row["latency"]]


def label_of(row):
    layout = "" if row["layout"] == "dense" else " " + row["layout"]
    return f"{row['op']} {row['pass']} {row['dtype']}{layout} {row['shape']}"


def draw(figures, path):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, a tenth of the size
    from matplotlib import pyplot

    rows = rows_of(figures)
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.22 * len(rows)))
    places = range(len(rows))
    axes.barh(places, [row["floor_ms"] / row["ms"] for row in rows], color="#4c72b0",
              height=0.7, label="attocl")
    for key, (name, marker, color) in PEERS.items():
        known = [(row["floor_ms"] / row[key], i) for i, row in enumerate(rows) if row.get(key)]
        if known:
            axes.plot(*zip(*known), marker, color=color, markersize=4, label=name)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(places, [label_of(row) for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.2, axes.get_xlim()[1]))
    axes.set_xlabel("share of the memory floor (1 = the time that moving the bytes takes)")
    axes.set_title(f"{figures['device']}, {figures['date']}", fontsize=9)
    axes.legend(loc="lower right", fontsize=7)
    axes.margins(y=0.01)
    figure.tight_layout()
    figure.savefig(path)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        figures = json.load(file)
    if not rows_of(figures):
        sys.exit("plot.py: no row of " + sys.argv[1] + " says something about memory")
    try:
        draw(figures, sys.argv[2])
    except ImportError as error:
        sys.exit(f"plot.py: {error}; on Debian: apt-get install python3-matplotlib")


if __name__ == "__main__":
    main()
