# SPDX-License-Identifier: MIT
"""tmesh.tokens compared with llama.cpp, on the vocabularies and test vectors in its sources (tests/engine/fetch.sh)."""

import importlib.util
import os
import struct
from pathlib import Path

import pytest

import tmesh
import tmesh.tokens
from conftest import assert_refused

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("tokenizers"), reason="the package tokenizers is not installed")

FOLDER = Path(os.environ.get("TMESH_VOCABULARIES", "/nonexistent"))
NAMES = ("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3",
         "qwen2", "qwen35", "refact", "starcoder")
needs = pytest.mark.skipif(not FOLDER.is_dir(), reason="llama.cpp's vocabularies cannot be had: no llama-cpp-python in the package index")


def vocabulary(name):
    return FOLDER / f"ggml-vocab-{name}.gguf"


@needs
@pytest.mark.parametrize("name", NAMES)
def test_vectors(name):
    """Each text is cut like in llama.cpp."""
    tokenizer = tmesh.tokens.of_model(tmesh.describe_model(vocabulary(name)))
    texts = Path(f"{vocabulary(name)}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wanted = [[int(number) for number in line.split()] for line in Path(f"{vocabulary(name)}.out").read_text().split("\n")]
    assert len(texts) > 40
    for text, numbers in zip(texts, wanted):
        assert tokenizer.encode(text, add_special_tokens=False).ids == numbers, repr(text)


def without(file, key, out):
    """Return the same file as a vocabulary without tensors, and without one of its texts."""
    data, name = file.read_bytes(), struct.pack("<Q", len(key)) + key.encode()
    begin = data.index(name)
    at = begin + len(name)
    assert data[at:at + 4] == struct.pack("<I", 8)
    end = at + 12 + struct.unpack("<Q", data[at + 4:at + 12])[0]
    count = struct.unpack("<Q", data[16:24])[0]
    out.write_bytes(data[:16] + struct.pack("<Q", count - 1) + data[24:begin] + data[end:])
    return out


@needs
def test_no_name(tmp_path):
    """A file without the name of its rules gets llama.cpp's default, which is not GPT-2's. The numbers are
    llama.cpp's."""
    file = without(vocabulary("gpt-2"), "tokenizer.ggml.pre", tmp_path / "v.gguf")
    tokenizer = tmesh.tokens.of_model(tmesh.describe_model(file))
    for text, numbers in {
        "ied 4 ½ months": [798, 220, 19, 220, 23141, 1933],
        "w048 7tuijk dsdfhu": [86, 47202, 220, 22, 28047, 45961, 288, 82, 7568, 13415],
        " (": [220, 7], "\n =": [198, 220, 28], "3333": [20370, 18], "33333333": [20370, 20370, 2091],
    }.items():
        assert tokenizer.encode(text).ids == numbers, repr(text)


@needs
@pytest.mark.parametrize("name, numbers", [("llama-bpe", [128000, 22691, 4435, 0]), ("gpt-2", [18435, 2159, 0]),
                                           ("bert-bge", [101, 7592, 2088, 999, 102]), ("llama-spm", [1, 29871, 15043, 2787, 29991])])
def test_ends(name, numbers):
    """Check the tokens before and after a text if the file does not specify them."""
    assert tmesh.tokens.of_model(tmesh.describe_model(vocabulary(name))).encode(" Hello World!").ids == numbers


class Said:
    """A model with given metadata of its tokenizer."""

    path = "/models/one.gguf"

    def __init__(self, **values):
        self.metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items()}


TOKENS = {"model": "gpt2", "tokens": ["a", "b", "ab", "<s>", "</s>", "Ġ"], "token_type": [1, 1, 1, 3, 3, 1], "merges": ["a b"]}


def test_said():
    """The file's metadata have precedence over the defaults. A pair's first half may begin with a space."""
    def ids(text, **values):
        return tmesh.tokens.of_model(Said(**TOKENS, **values)).encode(text).ids

    assert ids("abba") == [2, 1, 0]
    assert ids("ab", pre="llama-bpe", bos_token_id=3) == [3, 2]
    assert ids("ab", pre="llama-bpe", bos_token_id=3, add_bos_token=False) == [2]
    assert ids("ab", bos_token_id=3, eos_token_id=4) == [2]
    assert ids("ab", bos_token_id=3, eos_token_id=4, add_bos_token=True, add_eos_token=True) == [3, 2, 4]
    assert ids("ab", eos_token_id=99, add_eos_token=True) == [2]
    lines = Said(model="gemma4", tokens=["<unk>", " ", "a", " a", "▁", "▁a"], token_type=[2, 1, 1, 1, 1, 1], merges=["▁ a", "  a"])
    assert tmesh.tokens.of_model(lines).encode("a a").ids == [2, 5]


@pytest.mark.parametrize("values, words", [({"model": "t5"}, "/models/one.gguf: the model's tokenizer is 't5'; known are gpt2, llama"),
                                           ({"pre": "kimi-k2"}, "/models/one.gguf: how the tokenizer 'kimi-k2' cuts")])
def test_refused(values, words):
    assert_refused(lambda: tmesh.tokens.of_model(Said(**TOKENS | values)), tmesh.UnsupportedError, words)
