#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Both readers beside the formats' own packages, on valid files and on seeded mutations of them.

Never may a file be taken here that the package refuses, nor both take one and see different tensors.
Where this reader alone refuses, its message must be one of the reasons below; docs/reference/models.md explains
them. TMESH_TEST_LENGTH=full runs more; SEED and COUNT override.
"""
import collections
import contextlib
import io
import json
import logging
import os
import random
import re
import signal
import struct
import sys
import tempfile
import warnings

try:
    import gguf
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print("1..4")
    for number, name in enumerate(("safetensors", "gguf", "gguf quantised", "libggml"), 1):
        print(f"ok {number} - {name} # SKIP {error}: it cannot be had from the package index")
    sys.exit()

import libggml_reader
import tmesh_model

SEED = int(os.environ.get("SEED", 1))
COUNT = int(os.environ.get("COUNT", 60000 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 4000))

# Why this reader refuses what the package takes. The words are those of the message.
STRICTER = {
    "safetensors": {
        "duplicate keys": r"not JSON: duplicate object key",
        "a zero in a name": r"\\u0000 is not allowed|NUL byte",
        "members that the format does not know": r"has members beside",
        "more dimensions than tmesh has": r"dimensions; 8 are the most",
        "names that are empty or have control characters": r"has control characters",
        "numbers of 2^63 and more": r"too big integer",
        "__metadata__ that is null": r"__metadata__ is not an object",
    },
    "gguf": {
        "version 2": r"GGUF of version 2",
        "big-endian files": r"big-endian",
        "names that are empty, too long, or have a zero": r"(a key|a tensor's name) has .* bytes; 1 to"
                                                          r"|is not UTF-8 without zeros|has control characters",
        "overlaps": r"it overlaps the one before it",
        "holes": r"there is a hole before it|belong to no tensor",
        "booleans other than 0 and 1": r"neither 0 nor 1",
        "an alignment below 8 or above 1 MiB": r"general.alignment is",
        "rows that are no whole blocks": r"not a whole number of",
        "a split's values of another type, or negative": r"^split\.",
        "more than 4 dimensions": r"dimensions; 4 are the most",
        "sizes that overflow": r"overflows|out of range",
        "arrays of arrays": r"is an array of arrays",
        "a file that ends within its tables": r"the file ends within|do not fit into the file"
                                              r"|ends beyond the end",
        "a type of elements of an empty array that is none": r"has an unknown type",
    },
}
# It asks for no data, so that a file which ends within them is taken.
STRICTER["libggml"] = STRICTER["gguf"]


def mutate_bytes(rng, data, header):
    """A few random edits, most of them in the first @header bytes."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(min(header, len(data)) if rng.random() < 0.9 else len(data)) if data else 0
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.choice(b'\0\1\x7f\x80\xff{}[]",:-0919 \\')
        elif kind == 2:
            del data[at:at + rng.choice((1, 1, 2, 8))]
        elif kind == 3:
            data[at:at] = bytes(rng.choice(b'\0{}[]",:0123456789 ') for _ in range(rng.choice((1, 1, 2, 8))))
        elif kind == 4:
            piece = data[at:at + rng.randrange(1, 64)]
            data[at:at] = piece
        elif kind == 5 and len(data) >= at + 8:
            struct.pack_into("<Q", data, at, rng.choice((0, 1, 2, 7, 32, 2**31, 2**32, 2**63, 2**64 - 1,
                                                         len(data), len(data) + 1)))
        elif kind == 6:
            data = data[:rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data + bytes(rng.choice((1, 8, 32)))
    return bytes(data)


# ---- safetensors ----

TYPES = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
         "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
         "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}


def file_of(header, data, pad=True):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_valid(rng):
    header, at = {}, 0
    if rng.random() < 0.5:
        header["__metadata__"] = {f"k{i}": rng.choice(("", "v", "é", '"')) for i in range(rng.randrange(3))}
    for index in range(rng.randrange(6)):
        kind = rng.choice(list(TYPES))
        shape = [rng.choice((0, 1, 2, 3, 4, 8)) for _ in range(rng.randrange(5))]
        bits = TYPES[kind]
        for dim in shape:
            bits *= dim
        if bits % 8:
            shape.append(8)
            bits *= 8
        header[rng.choice(("w", "layer.0.weight", "ü")) + str(index)] = {
            "dtype": kind, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    return header, rng.randbytes(at)


def safetensors_mutant(rng):
    header, data = safetensors_valid(rng)
    names = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(9)
    if kind == 0:
        return file_of(header, data, rng.random() < 0.5)
    if kind <= 3 and names:  # what only a reader of the meaning finds
        entry = header[rng.choice(names)]
        what = rng.randrange(8)
        if what == 0:
            entry["data_offsets"][rng.randrange(2)] += rng.choice((-8, -1, 1, 8, 2**31, 2**62))
        elif what == 1:
            entry["dtype"] = rng.choice(list(TYPES) + ["f32", "", "F128"])
        elif what == 2:
            entry["shape"] = rng.choice(([], [0], [-1], [2**62, 4], [2**32, 2**32], [1] * 9, [1.0], ["1"],
                                         None, [2**63], [0, 2**63]))
        elif what == 3:
            entry[rng.choice(("extra", "DTYPE"))] = 1
        elif what == 4:
            del entry[rng.choice(("dtype", "shape", "data_offsets"))]
        elif what == 5:
            entry["data_offsets"] = rng.choice(([], [0], [0, 0, 0], [8, 0], None, [0, -0.0], "0"))
        elif what == 6:
            header["__metadata__"] = rng.choice((None, [], {"a": 1}, {"a": None}, "x", {}))
        else:
            other = header[rng.choice(names)]
            entry["data_offsets"], other["data_offsets"] = other["data_offsets"], entry["data_offsets"]
        return file_of(header, data)
    if kind == 4 and names:
        name = rng.choice(names)
        text = json.dumps(header)[:-1] + "," + json.dumps(name) + ":" + json.dumps(header[name]) + "}"
        return file_of(text.encode(), data)
    whole = file_of(header, data)
    return mutate_bytes(rng, whole, 8 + struct.unpack_from("<Q", whole)[0])


def safetensors_peer(data):
    names = {}
    for name, entry in safetensors.deserialize(data):
        names[name] = (entry["dtype"], list(entry["shape"]), len(entry["data"]))
    return names


def safetensors_ours(data):
    tensors, _ = tmesh_model.parse(data)
    return {t["name"]: (t["type"], t["shape"], t["bytes"]) for t in tensors}


# ---- gguf ----

# The package reads 40 bytes for this type, and ggml, whose type it is, 36. No file has it.
gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_1] = (32, 36)
# All that the package knows, integers and BF16 among them.
QUANTS = sorted(quant.name for quant in gguf.GGML_QUANT_SIZES if quant.name not in ("F32", "F16"))


def gguf_valid(rng, path):
    writer = gguf.GGUFWriter(path, "llama")
    if rng.random() < 0.4:
        writer.add_custom_alignment(rng.choice((8, 16, 64, 256)))
    for index in range(rng.randrange(5)):
        key = f"k.{index}"
        rng.choice((lambda: writer.add_uint32(key, 7), lambda: writer.add_string(key, "é"),
                    lambda: writer.add_bool(key, True), lambda: writer.add_float32(key, 0.5),
                    lambda: writer.add_array(key, ["a", "", "bcd"]), lambda: writer.add_array(key, [1, 2, 3]),
                    lambda: writer.add_int64(key, -2)))()
    for index in range(rng.randrange(1, 5)):
        rows = rng.choice((1, 2, 3))
        kind = rng.choice(("f32", "f16", *QUANTS))
        if kind in ("f32", "f16"):
            array = numpy.zeros([rng.choice((1, 3, 4)) for _ in range(rng.randrange(1, 5))],
                                numpy.float32 if kind == "f32" else numpy.float16)
            writer.add_tensor(f"blk.{index}.weight", array)
        else:
            quant = gguf.GGMLQuantizationType[kind]
            block, size = gguf.GGML_QUANT_SIZES[quant]
            raw = numpy.frombuffer(rng.randbytes(rows * 2 * size), numpy.uint8).reshape(rows, 2 * size)
            writer.add_tensor(f"blk.{index}.weight", raw, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(path, "rb") as file:
        return file.read()


class Endless(Exception):
    """The package reads on behind the end of the file, as often as a damaged count says."""


def gguf_peer(data, path):
    # A new file each time: the last one may still be mapped.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "wb") as file:
        file.write(data)
    return gguf_read(path, 0.5)


def gguf_read(path, seconds):
    """The package's opinion, as far as it has one after so many seconds of its own work: others may have the machine."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        reader = gguf.GGUFReader(path)
        return {t.name: (t.tensor_type.name, [int(d) for d in reversed(t.shape)], int(t.n_bytes), int(t.data_offset))
                for t in reader.tensors}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def gguf_ours(data):
    tensors, _ = tmesh_model.parse(data)
    return {t["name"]: (t["type"], t["shape"], t["bytes"], t["offset"]) for t in tensors}


def gguf_of_libggml(mutants):
    """The same files beside libggml's own reader, which a program of its own asks; None where there is none."""
    if libggml_reader.found():
        return None
    reader = libggml_reader.Reader()

    def ours(data):
        return {name: (kind, libggml_reader.stripped(shape), *rest)
                for name, (kind, shape, *rest) in gguf_ours(data).items()}

    good = compare("libggml", mutants, ours, lambda data: reader.tensors(data))
    reader.close()
    print(f"#   libggml crashed on {reader.crashes} of them")
    return good


def gguf_quantised(path):
    """Quantise weights with the package into each type that it can make; report each fault of the bytes at
    this reader's offsets. And one tensor of each type that the package knows."""
    weights = numpy.random.default_rng(SEED).normal(size=(6, 512)).astype(numpy.float32)
    made, writer = {}, gguf.GGUFWriter(path, "llama")
    for name in QUANTS:
        quant = gguf.GGMLQuantizationType[name]
        try:
            raw = gguf.quants.quantize(weights, quant)
            made[name] = raw
        except NotImplementedError:
            raw = numpy.zeros((2, 2 * gguf.GGML_QUANT_SIZES[quant][1]), numpy.uint8)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(path, "rb") as file:
        data = file.read()
    found = gguf_ours(data)
    wrong = [f"{found} here, {peer} there" for peer in [gguf_peer(data, path)] if found != peer]
    for name, raw in made.items():
        kind, shape, size, offset = found[f"{name}.weight"]
        back = numpy.frombuffer(data[offset:offset + size], numpy.uint8).reshape(len(raw), -1)
        again = gguf.quants.dequantize(back, gguf.GGMLQuantizationType[name])
        if (kind, shape) != (name, [*weights.shape]) or not numpy.array_equal(
                again, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])):
            wrong.append(f"{name}: {kind} {shape}, other weights")
    for line in wrong[:8]:
        print(f"# {line}")
    print(f"# {len(QUANTS)} types; quantised from weights: {', '.join(made)}")
    return not wrong and len(made) > 4


# ---- both ----

def outcome(call):
    try:
        return call(), None
    except tmesh_model.Refused as error:
        return None, error.message
    except Exception as error:  # whatever a package says of a bad file
        return None, f"{type(error).__name__}: {error}"


def compare(kind, mutants, ours, peer):
    counts, reasons, wrong = collections.Counter(), collections.Counter(), []
    for number, data in enumerate(mutants):
        mine, why = outcome(lambda: ours(data))
        theirs, complaint = outcome(lambda: peer(data))
        if why is None and complaint is None:
            counts["taken by both"] += 1
            if mine != theirs:
                wrong.append(f"{number}: {mine} here, {theirs} there")
        elif why is not None and complaint is not None:
            counts["refused by both"] += 1
        elif why is None:
            wrong.append(f"{number}: taken here, there {complaint}: {data[:300]!r}")
        else:
            counts["stricter"] += 1
            reason = next((name for name, words in STRICTER[kind].items() if re.search(words, why)), None)
            reasons[reason] += 1
            if reason is None:
                wrong.append(f"{number}: refused here alone, for no listed reason: {why}: {data[:300]!r}")
    for line in wrong[:8]:
        print(f"# {line}")
    print("# " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    for name, count in reasons.most_common():
        print(f"#   stricter: {count} {name}")
    return not wrong and counts["taken by both"] > len(mutants) // 50


def end(number, frame):
    raise Endless()


def main():
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGVTALRM, end)
    print("1..4")
    failed = False
    rng = random.Random(SEED)
    mutants = [safetensors_mutant(rng) for _ in range(COUNT)]
    good = compare("safetensors", mutants, safetensors_ours, safetensors_peer)
    print(f"{'ok' if good else 'not ok'} 1 - safetensors: {len(mutants)} files, seed {SEED}")
    failed |= not good
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "f.gguf")
        rng = random.Random(SEED)
        with contextlib.redirect_stdout(io.StringIO()):
            valid = [gguf_valid(rng, path) for _ in range(60)]
        mutants = list(valid)
        while len(mutants) < COUNT:
            base = rng.choice(valid)
            mutants.append(mutate_bytes(rng, base, max(64, int(len(base) * 0.5))))
        good = compare("gguf", mutants, gguf_ours, lambda data: gguf_peer(data, path))
        print(f"{'ok' if good else 'not ok'} 2 - gguf: {len(mutants)} files, seed {SEED}")
        failed |= not good
        good = gguf_quantised(path)
    print(f"{'ok' if good else 'not ok'} 3 - gguf quantised")
    failed |= not good
    good = gguf_of_libggml(mutants)
    if good is None:
        print(f"ok 4 - libggml # SKIP {libggml_reader.found()}")
    else:
        print(f"{'ok' if good else 'not ok'} 4 - libggml: {len(mutants)} files, seed {SEED}")
        failed |= not good
    return failed


if __name__ == "__main__":
    sys.exit(main())
