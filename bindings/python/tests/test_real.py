# SPDX-License-Identifier: MIT
"""A real model from a package, SmolLM2-135M-Instruct in Q4_1 (tests/engine/fetch.sh): text, batches and an engine's
process. It has three heads of keys, so its pages are no power of two. It only runs at full length."""

import os
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.batching  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.generate  # noqa: E402
import tmesh.graphs  # noqa: E402
import tmesh.tokens  # noqa: E402
from conftest import serve  # noqa: E402

FOLDER = Path(os.environ.get("TMESH_SMOLLM2", "/nonexistent"))
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="SmolLM2 is fetched at full length only, from the package index")

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def file():
    (found,) = FOLDER.glob("*.gguf")
    return found


def test_text(file):
    """Its header passes the check, and the likeliest words are those of its training."""
    header = tmesh.describe_model(file)
    tmesh.graphs.check(header, rows=64, context=tmesh.engine.Context("ggml"))
    tokenizer = tmesh.tokens.of_model(header)
    given = tokenizer.encode(PROMPT).ids
    assert tokenizer.decode(given) == PROMPT
    with tmesh.load_model(file) as model:
        sequence = tmesh.generate.Sequence(model, rows=64)
        tokens, logits = [], sequence.run(given)
        for _ in range(6):
            tokens.append(tmesh.generate.choose(logits))
            logits = sequence.run(tokens[-1:])
        assert tokenizer.decode(tokens).startswith(" Paris")
        sequence.release()


@pytest.mark.parametrize("served", [False, True])
def test_batches(file, tmp_path, served):
    """Three texts at once give the same as each alone, also in an engine's process."""
    texts = PROMPT, "Once upon a time", "2 + 2 ="
    with tmesh.load_model(file) as model:
        tokenizer = tmesh.tokens.of_model(model)
        prompts = [tokenizer.encode(text).ids for text in texts]

        def run(context, lanes, given):
            with tmesh.batching.Generator(model, lanes=lanes, max_tokens=32, context=context, folder=tmp_path) as generator:
                requests = [generator.submit(prompt, 6) for prompt in given]
                while generator.busy:
                    generator.step()
                assert generator.info()["pages_held"] == 0
                return [request.tokens for request in requests]

        if served:
            with serve("ggml", models=tmp_path) as server:
                got = run(server.connect(), 3, prompts)
        else:
            got = run(None, 3, prompts)
        assert got == [run(None, 1, [prompt])[0] for prompt in prompts]
        assert tokenizer.decode(got[0]).startswith(" Paris")
