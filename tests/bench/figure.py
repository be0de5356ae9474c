# SPDX-License-Identifier: MIT
"""The figure of `make bench`: each ratio as a bar from 1, with a mark where its bound is."""

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # noqa: E402 - the backend comes first

COLOURS = {"met": "#2a9d5c", "reported": "#8fa1b3", "not met": "#d1495b"}
ROW = 0.25  # inches


def rows_of(sections):
    """A heading (a string) or a line (a dict) for every row."""
    for section in sections:
        lines = [line for line in section["bounds"] if "ratio" in line]
        if lines:
            yield section["title"]
            yield from lines


def draw(sections, machine, path):
    """Draw the sections' measured lines as an SVG to `path`."""
    matplotlib.rcParams.update({"svg.hashsalt": "tmesh", "svg.fonttype": "none",
                                "font.family": "sans-serif", "font.size": 9})
    rows = list(rows_of(sections))
    height = ROW * len(rows) + 0.9
    fig = pyplot.figure(figsize=(9.9, height))
    axes = fig.add_axes((0.24, 0.5 / height, 0.44, ROW * len(rows) / height))
    place = {"va": "center", "transform": axes.get_yaxis_transform()}

    for y, row in enumerate(rows):
        if isinstance(row, str):
            axes.text(-0.53, y + 0.1, row, weight="bold", **place)
            continue
        axes.text(-0.50, y, row["title"], **place)
        axes.barh(y, row["ratio"] - 1, 0.55, left=1, color=COLOURS[row["verdict"]])
        if row["limit"] is not None:
            axes.plot([row["limit"]] * 2, [y - 0.4, y + 0.4], color="#222222", linewidth=1.5)
        axes.text(1.02, y, f"{row['ratio']:.2f}  × {row['beside']}", color="#333333", **place)

    axes.axvline(1, color="#777777", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.02, 8)
    ticks = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color="#e4e8ec", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("median time as a multiple of what it is compared with; the mark is the bound")
    fig.text(0.008, 1 - 0.22 / height,
             f"tmesh {machine['version']}, {machine['backend']} backend, on {machine['cpu']},"
             f" {machine['cpus']} CPUs{' (virtual)' if machine['virtual'] else ''},"
             f" Linux {machine['kernel']}{', real-time priority' if machine['real_time'] else ''}",
             color="#555555")
    fig.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(fig)
