# SPDX-License-Identifier: MIT
"""Converts text to the tokens of a GGUF model and back, by the package tokenizers and the file's metadata.

    tokenizer = tmesh.tokens.of_model(model)          # a tokenizers.Tokenizer
    tokenizer.encode("some text").ids

The tokens are llama.cpp's. If a file does not specify an option, llama.cpp's default applies.
"""

from __future__ import annotations

import errno
import importlib
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .model import Description, Model

__all__ = ["of_model"]

# The rules that cut text into words before pairs are merged (src/llama-vocab.cpp of llama.cpp). Each expression cuts
# the pieces of the one before it. A piece without a match stays whole.
_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_REST_PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}"
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_TEKKEN = rf"{'|'.join(_CAPITALS)}|\p{{N}}|{_REST_PATHS}"
_GPT4O = rf"{'|'.join(f'{word}{_ENDINGS}?' for word in _CAPITALS)}|\p{{N}}{{1,3}}|{_REST_PATHS}"
_DEEPSEEK3 = (r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u30ff]+",
              rf"[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}")
# The letters in DeepSeek's first tokenizers.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄ"
    "ῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
# The rules by their names in GGUF's tokenizer.ggml.pre. None, no name, is "default".
_CUTS: dict[str, tuple[str, ...]] = {
    "default": _DEFAULT, "": _DEFAULT,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "dbrx",
                     "smaug-bpe", "chatglm-bpe", "glm4", "glm5"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"),
                    (_QWEN2,)),
    "qwen35": (rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}",),
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum", "modern-bert",
                     "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
                    (_GPT2,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", _GPT2)),
    "falcon": (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "deepseek-llm": (r"[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), (_GPT4O,)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), (_BLOOM,)),
    "viking": (_BLOOM, r"\p{N}"),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"),
                    (rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)),
    "seed-coder": (rf"{_ENDINGS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",),
}
# Tokenizers that do not split a word which is a token.
_WHOLE = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "glm4", "glm5", "tekken"}
# Tokenizers that add the model's first token by default.
_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"}
_CONTROL, _USER = 3, 4
_SPACE = "\u2581"


def _refuse(model: Model | Description, why: str) -> errors.UnsupportedError:
    return errors.UnsupportedError(errno.EOPNOTSUPP, f"{model.path}: {why}")


def _scored(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Compute merges. SentencePiece only has scores of whole pieces, so list the pairs that make each piece, best piece
    first."""
    known = {token: number for number, token in enumerate(tokens)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in known and right in known:
                found.append((-score, known[left], known[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _merges(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Read the pairs. The first half of a pair may begin with a space."""
    pairs = [(pair, pair.find(" ", 1)) for pair in map(str, values.get("tokenizer.ggml.merges", []))]
    return [(pair[:at], pair[at + 1:]) for pair, at in pairs]


def _unknown(values: dict[str, Any], tokens: list[str]) -> str | None:
    unknown = int(values.get("tokenizer.ggml.unknown_token_id", 0))
    return tokens[unknown] if 0 <= unknown < len(tokens) else None


def _by_bytes(package: Any, model: Model | Description, values: dict[str, Any], tokens: list[str]) -> Any:
    """Make a tokenizer like GPT-2's: pairs of bytes."""
    name = str(values.get("tokenizer.ggml.pre", "default"))
    if name not in _CUTS:
        raise _refuse(model, f"how the tokenizer {name!r} cuts text into words is not known here; known are "
                             f"{', '.join(sorted(filter(None, _CUTS)))}")
    made = package.Tokenizer(package.models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=_merges(values),
                                                ignore_merges=name in _WHOLE))
    cutting = package.pre_tokenizers
    made.pre_tokenizer = cutting.Sequence([*(cutting.Split(package.Regex(cut), "isolated") for cut in _CUTS[name]),
                                           cutting.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = package.decoders.ByteLevel()
    return made


def _spaced(package: Any, made: Any, prefix: bool) -> Any:
    """Treat a space as a letter of its own. With prefix a text begins with one."""
    made.normalizer = package.normalizers.Sequence(
        [*([package.normalizers.Prepend(_SPACE)] if prefix else []), package.normalizers.Replace(" ", _SPACE)])
    made.decoder = package.decoders.Sequence(
        [package.decoders.Replace(_SPACE, " "), package.decoders.ByteFallback(), package.decoders.Fuse(),
         *([package.decoders.Strip(" ", 1, 0)] if prefix else [])])
    return made


def _by_pieces(package: Any, model: Model | Description, values: dict[str, Any], tokens: list[str]) -> Any:
    """Make a tokenizer with SentencePiece's pairs, as in the first llamas and gemmas."""
    scores = values.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise errors.ProtocolError(errno.EPROTO, f"{model.path}: the model has {len(tokens)} tokens and {len(scores)} scores")
    made = package.Tokenizer(package.models.BPE(
        vocab={token: at for at, token in enumerate(tokens)}, merges=_scored(tokens, scores), fuse_unk=True,
        byte_fallback=True, unk_token=_unknown(values, tokens)))
    return _spaced(package, made, bool(values.get("tokenizer.ggml.add_space_prefix", True)))


def _by_lines(package: Any, model: Model | Description, values: dict[str, Any], tokens: list[str]) -> Any:
    """Make a tokenizer like Gemma 4's: pairs of letters in whole lines."""
    made = package.Tokenizer(package.models.BPE(
        vocab={token: at for at, token in enumerate(tokens)}, merges=_merges(values), fuse_unk=True, byte_fallback=True,
        unk_token=_unknown(values, tokens)))
    made.pre_tokenizer = package.pre_tokenizers.Split(package.Regex(r"[^\n]+|\n+"), "isolated")
    return _spaced(package, made, bool(values.get("tokenizer.ggml.add_space_prefix", False)))


def _by_words(package: Any, model: Model | Description, values: dict[str, Any], tokens: list[str]) -> Any:
    """Make a tokenizer like BERT's: the longest piece first. GGUF marks pieces that begin a word; the package marks the
    others."""
    kinds = values.get("tokenizer.ggml.token_type", [])
    vocabulary = {}
    for at, token in enumerate(tokens):
        plain = at < len(kinds) and kinds[at] != 1
        vocabulary[token if plain else token[1:] if token.startswith(_SPACE) else f"##{token}"] = at
    unknown = int(values.get("tokenizer.ggml.unknown_token_id", 100))
    made = package.Tokenizer(package.models.WordPiece(vocab=vocabulary, unk_token=next(
        (token for token, at in vocabulary.items() if at == unknown), "[UNK]"), max_input_chars_per_word=1 << 20))
    made.normalizer = package.normalizers.BertNormalizer()
    made.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    made.decoder = package.decoders.WordPiece()
    return made


_KINDS = {"gpt2": _by_bytes, "llama": _by_pieces, "gemma4": _by_lines, "bert": _by_words}


def _ends(values: dict[str, Any], kind: str, count: int) -> tuple[int | None, int | None]:
    """Return the tokens to add before a text and after it."""
    first = values.get("tokenizer.ggml.bos_token_id", values.get("tokenizer.ggml.cls_token_id") if kind == "bert" else
                       1 if kind == "llama" else None)
    last = values.get("tokenizer.ggml.seperator_token_id" if kind == "bert" else "tokenizer.ggml.eos_token_id")
    before = values.get("tokenizer.ggml.add_bos_token", kind != "gpt2" or values.get("tokenizer.ggml.pre") in _FIRST)
    behind = values.get("tokenizer.ggml.add_sep_token" if kind == "bert" else "tokenizer.ggml.add_eos_token", kind == "bert")

    def number(wanted: Any, value: Any) -> int | None:
        return value if wanted and isinstance(value, int) and 0 <= value < count else None

    return number(before, first), number(behind, last)


def of_model(model: Model | Description) -> Any:
    """Return the tokenizer of a GGUF model, a tokenizers.Tokenizer. It finds control tokens in a text, as chat formats
    require, and adds a first and a last token if the model says so. UnsupportedError: the package tokenizers is not
    installed, or the tokenizer is of another kind. The kinds are pairs of bytes ("gpt2"), SentencePiece's pairs
    ("llama"), Gemma 4's ("gemma4") and BERT's words ("bert"). UnsupportedError is also for unknown rules of cutting
    words."""
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, "text wants the package tokenizers: pip install tokenizers") from None
    values = model.metadata
    kind = values.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise _refuse(model, f"the model's tokenizer is {kind!r}; known are {', '.join(_KINDS)}")
    tokens = [str(token) for token in values.get("tokenizer.ggml.tokens", [])]
    if not tokens or len(set(tokens)) != len(tokens):
        raise errors.ProtocolError(errno.EPROTO, f"{model.path}: the model's tokens are none, or one is there twice")
    made = _KINDS[kind](tokenizers, model, values, tokens)
    kinds = values.get("tokenizer.ggml.token_type", [])
    for wanted, add in ((_CONTROL, made.add_special_tokens), (_USER, made.add_tokens)):
        add([tokenizers.AddedToken(token, normalized=False, special=wanted == _CONTROL)
             for token, is_of in zip(tokens, kinds) if is_of == wanted])
    first, last = _ends(values, kind, len(tokens))
    if first is not None or last is not None:
        ends = {made.id_to_token(number): number for number in (first, last) if number is not None}
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*([made.id_to_token(first)] if first is not None else []), "$A", *([made.id_to_token(last)] if last is not None else [])],
            special_tokens=list(ends.items()))
    return made
