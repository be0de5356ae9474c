# SPDX-License-Identifier: MIT
"""Output in a notebook."""

import os
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND

pytestmark = ANY_BACKEND


def test_tensor():
    t = tmesh.put(np.arange(6.0).reshape(2, 3), label="<weights> & more", seal=False)
    html = t._repr_html_()
    ElementTree.fromstring(html)
    for piece in ("2 × 3", "float64", "3, 1 elements", "48 bytes", "writable", t.id,
                  "&lt;weights&gt; &amp; more", "[3. 4. 5.]"):
        assert piece in html
    t.seal()
    assert "sealed" in t._repr_html_()
    other = tmesh.put([1.0], seal=False)
    assert "read-only" in tmesh.open(other.ref())._repr_html_()
    t.release()
    assert "released" in t._repr_html_()
    assert "lost" in tmesh._tmesh.unpickle((-2, "its process has ended"))._repr_html_()


@pytest.mark.parametrize("t", [lambda: tmesh.empty((), "int8"), lambda: tmesh.empty((0, 3), "int8"),
                               lambda: tmesh.empty(4, "bfloat16"), lambda: tmesh.empty(4, "int4"),
                               lambda: tmesh.empty((1000, 1000), "int8")[::-1]])
def test_odd_tensors(t):
    html = t()._repr_html_()
    ElementTree.fromstring(html)
    assert len(html) < 2000


def test_without_numpy(python):
    assert "int8" in python("import sys\nsys.modules['numpy'] = None\nimport tmesh\n"
                            "print(tmesh.empty(3, 'int8')._repr_html_())")


def test_drawing(tmp_path, peer):
    t = tmesh.put([1.0, 2.0], label="a < b", seal=True)
    holder = peer("import sys, tmesh\nt = tmesh.open(sys.argv[1])\nt.numpy()\n"
                  "print(flush=True)\nsys.stdin.read()", t.token)
    holder.stdout.readline()
    drawing = tmesh.draw()
    assert t.id in [region["id"] for region in drawing.regions]
    assert {os.getpid(), holder.pid} <= {h["pid"] for h in drawing.holders[t.id]}
    drawing.save(tmp_path / "drawing.svg")
    svg = ElementTree.parse(tmp_path / "drawing.svg").getroot()
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b, 16 bytes" in texts
    assert any(f"({holder.pid})" in text for text in texts)
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}line"))) >= 2
    assert "processes" in repr(drawing)


def test_drawing_of_nothing(python, tmp_path):
    svg = python("import os, tmesh\nprint(tmesh.draw()._repr_svg_())",
                 env={**os.environ, "TMESH_RUNTIME_DIR": str(tmp_path / "empty")})
    ElementTree.fromstring(svg)
