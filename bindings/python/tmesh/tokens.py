# SPDX-License-Identifier: MIT
"""Text to the tokens of a GGUF model and back, by the package tokenizers, from what the file says.

    tokenizer = tmesh.tokens.of_model(model)          # a tokenizers.Tokenizer
    tokenizer.encode("some text").ids
"""

from __future__ import annotations

import errno
import importlib
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .model import Model

__all__ = ["of_model"]

# How text is cut into words before pairs are merged, by the names that GGUF has in tokenizer.ggml.pre. None: as GPT-2.
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CUTS = {
    "default": None, "gpt-2": None, "": None,
    "qwen2": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",
    "llama3": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",
    "smollm": r"\p{N}",
}
_CONTROL, _USER = 3, 4
_SPACE = "\u2581"


def _pairs(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece has scores of whole pieces: the pairs that make each, best piece first."""
    known = {token: number for number, token in enumerate(tokens)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in known and right in known:
                found.append((-score, known[left], known[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _by_bytes(package: Any, values: dict[str, Any], tokens: list[str]) -> Any:
    """GPT-2's: pairs of bytes."""
    name = str(values.get("tokenizer.ggml.pre", "default"))
    if name not in _CUTS:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"how the tokenizer {name!r} cuts text into words is not known here; "
                                      f"known are {', '.join(word for word in _CUTS if word)}")
    merges = [tuple(pair.split(" ", 1)) for pair in values.get("tokenizer.ggml.merges", [])]
    made = package.Tokenizer(package.models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges,
                                                ignore_merges=name in ("llama-bpe", "llama3")))
    cutting = package.pre_tokenizers
    cut = _CUTS[name]
    steps = [cutting.Split(package.Regex(cut), "isolated")] if cut else []
    steps.append(cutting.ByteLevel(add_prefix_space=False, use_regex=cut is None or name == "smollm"))
    made.pre_tokenizer = cutting.Sequence(steps)
    made.decoder = package.decoders.ByteLevel()
    return made


def _by_pieces(package: Any, values: dict[str, Any], tokens: list[str]) -> Any:
    """SentencePiece's pairs, as the first llamas have them."""
    scores = values.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise errors.ProtocolError(errno.EPROTO, f"the model has {len(tokens)} tokens and {len(scores)} scores")
    unknown = int(values.get("tokenizer.ggml.unknown_token_id", 0))
    made = package.Tokenizer(package.models.BPE(
        vocab={token: at for at, token in enumerate(tokens)}, merges=_pairs(tokens, scores), fuse_unk=True,
        byte_fallback=True, unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None))
    prefix = bool(values.get("tokenizer.ggml.add_space_prefix", True))
    made.normalizer = package.normalizers.Sequence(
        [*([package.normalizers.Prepend(_SPACE)] if prefix else []), package.normalizers.Replace(" ", _SPACE)])
    made.decoder = package.decoders.Sequence(
        [package.decoders.Replace(_SPACE, " "), package.decoders.ByteFallback(), package.decoders.Fuse(),
         *([package.decoders.Strip(" ", 1, 0)] if prefix else [])])
    return made


_KINDS = {"gpt2": _by_bytes, "llama": _by_pieces}


def of_model(model: Model) -> Any:
    """The tokenizer that a GGUF model has in it, a tokenizers.Tokenizer. Control tokens in a text are found, as chat formats
    want it; a first token is put in front where the model says so. UnsupportedError: another kind than pairs of bytes ("gpt2") and
    SentencePiece's pairs ("llama"), or the package tokenizers is not installed."""
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, "text wants the package tokenizers: pip install tokenizers") from None
    values = model.metadata
    kind = values.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"the model's tokenizer is {kind!r}; known are {', '.join(_KINDS)}")
    tokens = [str(token) for token in values.get("tokenizer.ggml.tokens", [])]
    if not tokens or len(set(tokens)) != len(tokens):
        raise errors.ProtocolError(errno.EPROTO, "the model's tokens are none, or one is there twice")
    made = _KINDS[kind](tokenizers, values, tokens)
    kinds = values.get("tokenizer.ggml.token_type", [])
    for wanted, add in ((_CONTROL, made.add_special_tokens), (_USER, made.add_tokens)):
        add([tokenizers.AddedToken(token, normalized=False, special=wanted == _CONTROL)
             for token, is_of in zip(tokens, kinds) if is_of == wanted])
    first = values.get("tokenizer.ggml.bos_token_id")
    if values.get("tokenizer.ggml.add_bos_token", kind == "llama") and isinstance(first, int) and 0 <= first < len(tokens):
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=[tokens[first], "$A"], special_tokens=[(tokens[first], first)])
    return made
