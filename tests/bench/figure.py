# SPDX-License-Identifier: MIT
"""The figure of `make bench`: each line's ratio as a bar, with a mark where its bound is."""

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # noqa: E402 - the backend comes first

COLOURS = {"met": "#2a9d5c", "reported": "#7a8794", "not met": "#d1495b"}


def draw(sections, machine, path):
    """Draw the sections' measured lines as an SVG to `path`."""
    rows, headings = [], []
    for section in sections:
        measured = [line for line in section["bounds"] if "ratio" in line]
        if measured:
            headings.append((len(rows) + len(headings), section["title"]))
            rows += [(len(rows) + len(headings) + i, line) for i, line in enumerate(measured)]

    matplotlib.rcParams.update({"svg.hashsalt": "tmesh", "svg.fonttype": "none",
                                "font.family": "sans-serif", "font.size": 9})
    last = rows[-1][0]
    fig, axes = pyplot.subplots(figsize=(8.4, 0.27 * (last + 1) + 1.0))
    for y, line in rows:
        axes.barh(y, line["ratio"], height=0.6, color=COLOURS[line["verdict"]])
        if line["limit"] is not None:
            axes.plot([line["limit"]] * 2, [y - 0.42, y + 0.42], color="#222222", linewidth=1.6)
        axes.text(max(line["ratio"], line["limit"] or 0) * 1.06, y,
                  f"{line['ratio']:.2f} × {line['beside']}", va="center", color="#444444", size=8)
    axes.axvline(1, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_yticks([y for y, _line in rows] + [y for y, _title in headings])
    axes.set_yticklabels([line["title"] for _y, line in rows] + [title for _y, title in headings])
    for label in axes.get_yticklabels()[len(rows):]:
        label.set_fontweight("bold")
    axes.set_xscale("log")
    axes.set_xlim(0.01, 60)
    axes.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    axes.minorticks_off()
    axes.set_ylim(last + 0.8, -0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("median time, as a multiple of what stands beside it; the mark is the bound")
    axes.set_title(f"tmesh {machine['version']} ({machine['backend']} backend) on {machine['cpu']},"
                   f" {machine['cpus']} CPUs, Linux {machine['kernel']}", size=9, loc="left")
    fig.tight_layout()
    fig.savefig(path, metadata={"Date": None})
    pyplot.close(fig)
