# SPDX-License-Identifier: MIT
"""Write a model in the layout that its engine uses in place, so that processes share a kept copy of it.

    python -m tmesh.prepare onnx MODEL.onnx FOLDER
    tmeshctl keep --folder FOLDER NAME

onnx: ONNX Runtime repacks weights when it loads a model, into memory of each process. The folder gets a model that is
optimized for this machine's CPU, and a file with the repacked weights. Load it with the optimizations off
(ORT_DISABLE_ALL). Another version of ONNX Runtime or another kind of CPU may repack it again; then prepare it there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence

from .errors import ExistsError, InvalidError, NotFoundError, UnsupportedError

# Smaller weights stay in the model's own file.
_LEAST_BYTES = 1024


def onnx(model: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[str]:
    """Prepare an ONNX model for ONNX Runtime's CPU provider, and return the files that the folder has then. The folder
    must be new or empty. After an error it is complete or missing."""
    model, folder = os.path.abspath(os.fspath(model)), os.path.abspath(os.fspath(folder))
    if not os.path.isfile(model):
        raise NotFoundError(2, f"cannot prepare {model}: there is no such file")
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise ExistsError(17, f"cannot prepare a model in {folder}: it exists and is not empty; name a new folder")
    try:
        import onnxruntime as ort  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise UnsupportedError(95, f"cannot prepare {model}: onnxruntime is missing; pip install onnxruntime") from error
    name = os.path.basename(model)
    above = os.path.dirname(folder)
    os.makedirs(above, exist_ok=True)
    unfinished = tempfile.mkdtemp(prefix=".prepare-", dir=above)
    try:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = os.path.join(unfinished, name)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", name + ".data")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_LEAST_BYTES))
        options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
        try:
            ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise InvalidError(22, f"cannot prepare {model}: ONNX Runtime refuses it: {error}") from error
        files = sorted(os.listdir(unfinished))
        os.chmod(unfinished, 0o755)
        if os.path.isdir(folder):
            os.rmdir(folder)
        os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return files


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tmesh.prepare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=["onnx"])
    parser.add_argument("model", help="the model's file")
    parser.add_argument("folder", help="a new or empty folder")
    said = parser.parse_args(argv)
    try:
        files = onnx(said.model, said.folder)
    except (NotFoundError, ExistsError, UnsupportedError, InvalidError, OSError) as error:
        print(f"tmesh.prepare: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(os.path.join(said.folder, file))
    print("load it with graph_optimization_level = ORT_DISABLE_ALL: it is optimized already", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
