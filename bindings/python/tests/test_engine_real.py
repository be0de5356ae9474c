# SPDX-License-Identifier: MIT
"""Models of voice activity, of diacritics and of file types, beside ONNX Runtime alone. By default small ones of the
same operators run (tests/engine/models.py). At full length those in packages run too (tests/engine/fetch.sh)."""

import os
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.engine  # noqa: E402
from conftest import serve  # noqa: E402

MODELS = Path(os.environ.get("TMESH_ENGINE_MODELS", "/nonexistent"))
REAL = Path(os.environ.get("TMESH_ONNX_MODELS", "/nonexistent"))
onnxruntime = pytest.importorskip("onnxruntime", reason="only with the package onnxruntime (python-engine-check)")
pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="only with the package onnx (python-engine-check)")
rng = np.random.default_rng(11)


def voice(hidden, samples, rate):
    return {"input": rng.standard_normal((1, samples)).astype(np.float32), "state": np.zeros((2, 1, hidden), np.float32),
            "sr": np.array(rate, np.int64)}


def letters(count, names):
    given = [rng.integers(1, 15, (2, count)) for _ in names[:-1]]
    return dict(zip(names, [*given, np.array([count, count // 2])], strict=True))


CASES = [
    ("voice", MODELS, lambda: voice(8, 64, 16000)),
    ("voice", MODELS, lambda: voice(8, 64, 8000)),
    ("marks", MODELS, lambda: letters(12, ["chars", "lengths"])),
    ("kinds", MODELS, lambda: {"bytes": rng.integers(0, 17, (2, 64), np.int32)}),
    ("silero", REAL, lambda: voice(128, 576, 16000)),
    ("silero", REAL, lambda: voice(128, 288, 8000)),
    ("tashkeel", REAL, lambda: letters(20, ["char_inputs", "diac_inputs", "input_lengths"])),
    ("magika", REAL, lambda: {"bytes": rng.integers(0, 257, (2, 2048), np.int32)}),
]


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("name, folder, inputs", CASES, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)])
def test_model(name, folder, inputs, served):
    """The bits are the same, three times: with arrays, and with Tensors whose inputs stay in place."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        pytest.skip("real models are fetched at full length only, from the package index")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    inputs = inputs()
    plain = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = dict(zip([output.name for output in plain.get_outputs()], plain.run(None, inputs), strict=True))
    if served:
        with serve(models=folder) as server:
            compare(server.connect(), path, inputs, wanted)
    else:
        compare(tmesh.engine.Context(), path, inputs, wanted)


def compare(context, path, inputs, wanted):
    graph = context.graph(path)
    tensors = {name: tmesh.put(array, seal=True) for name, array in inputs.items()}
    for given in inputs, tensors, tensors:
        outputs = {name: np.empty_like(array) for name, array in wanted.items()}
        graph.dispatch(given, outputs)
        for name, array in wanted.items():
            assert np.array_equal(outputs[name], array, equal_nan=True), name
