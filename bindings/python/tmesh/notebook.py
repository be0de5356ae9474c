# SPDX-License-Identifier: MIT
"""Notebook output: a tensor as a small table, and a drawing of holders and regions."""

from __future__ import annotations

from html import escape
from os import PathLike

from . import _tmesh
from .errors import AccessError, Error, NotFoundError

_ROW, _LEFT, _RIGHT, _BOX = 34, 12, 420, 250


def _rows(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td>"
                   "</tr>" for name, value in pairs)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.4g} {unit}"


def _values(tensor: _tmesh.Tensor) -> str | None:
    """Return the first few elements, if NumPy is installed and has the type."""
    try:
        import numpy
    except ImportError:
        return None
    try:
        array = tensor.numpy(writable=False)
    except Error:
        return None
    # NumPy's summary of a few elements reads only these, even in a large tensor.
    return numpy.array2string(array, threshold=32, edgeitems=2)


def tensor_html(tensor: _tmesh.Tensor) -> str:
    """Implement Tensor._repr_html_()."""
    if tensor.released or tensor.lost:
        return f"<code>{escape(repr(tensor))}</code>"
    access = "sealed" if tensor.sealed else "writable" if tensor.writable else "read-only"
    pairs = [
        ("shape", " × ".join(map(str, tensor.shape)) or "a scalar"),
        ("dtype", tensor.dtype),
        ("strides", f"{', '.join(map(str, tensor.strides))} elements" if tensor.ndim else "none"),
        ("size", _bytes(tensor.nbytes)),
        ("memory", f"{tensor.device}, {access}"),
        ("region", f"{tensor.id} {tensor.label}".strip()),
    ]
    values = _values(tensor)
    shown = f"<pre>{escape(values)}</pre>" if values is not None else ""
    return f"<div><b>tmesh.Tensor</b><table>{_rows(pairs)}</table>{shown}</div>"


class Drawing:
    """The holders of regions at one moment. Processes are on the left, regions on the right. A line
    joins a process and a region that it holds; it is thick if the process may write. A notebook
    draws it, and save() writes the SVG. regions and holders have the results of tmesh.regions() and
    tmesh.holders()."""

    def __init__(self) -> None:
        self.regions: list[_tmesh.Region] = []
        self.holders: dict[str, list[_tmesh.Holder]] = {}
        for region in _tmesh.regions():
            try:
                self.holders[region["id"]] = _tmesh.holders(region["id"])
            except (AccessError, NotFoundError):
                self.holders[region["id"]] = []  # not visible to this process, or gone meanwhile
            self.regions.append(region)

    def _processes(self) -> dict[int, str]:
        return {holder["pid"]: holder["command"] for holders in self.holders.values()
                for holder in holders if holder["pid"] is not None}

    def _repr_svg_(self) -> str:
        processes = self._processes()
        left = {pid: 20 + _ROW * row for row, pid in enumerate(sorted(processes))}
        right = {region["id"]: 20 + _ROW * row for row, region in enumerate(self.regions)}
        height = 20 + _ROW * max(len(left), len(right), 1)
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_RIGHT + _BOX + 12}" '
                 f'height="{height}" font-family="sans-serif" font-size="12">']
        for identity, holders in self.holders.items():
            for holder in holders:
                if holder["pid"] in left:
                    width = 3 if "w" in holder["rights"] else 1
                    parts.append(
                        f'<line x1="{_LEFT + _BOX}" y1="{left[holder["pid"]] + 12}" x2="{_RIGHT}" '
                        f'y2="{right[identity] + 12}" stroke="#467" stroke-width="{width}">'
                        f'<title>{escape(holder["kind"])} {escape(holder["rights"])}</title></line>')
        for pid, y in left.items():
            parts.append(_box(_LEFT, y, "#def", f"{processes[pid]} ({pid})"))
        for region in self.regions:
            name = f"{region['label'] or region['id']}, {_bytes(region['bytes'])}"
            parts.append(_box(_RIGHT, right[region["id"]],
                              "#fdd" if region["revoked"] else "#dfd" if region["sealed"]
                              else "#ffd", name))
        parts.append("</svg>")
        return "".join(parts)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as an SVG."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._repr_svg_())

    def __repr__(self) -> str:
        return f"<tmesh drawing: {len(self._processes())} processes, {len(self.regions)} regions>"


def _box(x: int, y: int, color: str, text: str) -> str:
    return (f'<rect x="{x}" y="{y}" width="{_BOX}" height="24" rx="4" fill="{color}" '
            f'stroke="#888"/><text x="{x + 8}" y="{y + 16}">{escape(text)}</text>')


def draw() -> Drawing:
    """Draw the holders of the regions of tmesh.regions(). Sealed ones are green, revoked ones red.
    tmeshctl draw draws the same in a terminal. Errors as of tmesh.regions()."""
    return Drawing()
