"""The parts of the picture model."""

from __future__ import annotations

from random import Random

from app.demo import blueprint
from app.demo.shapes import caption, draw_scene


def test_a_word_is_a_token_and_anything_else_still_has_tokens() -> None:
    tokens = blueprint.tokenizer()
    rng = Random(3)
    for _ in range(500):
        text = caption(draw_scene(rng, held_out=True), rng)
        assert len(tokens.tokenize(text)) == len(text.replace(",", " ,").split()), text
        assert len(tokens(text).input_ids) <= blueprint.PROMPT_TOKENS
    assert tokens("A Large RED circle").input_ids == tokens("a large red circle").input_ids
    strange = tokens("Zebra, café 😀 \u4e2d!").input_ids
    assert tokens.eos_token_id not in strange[:-1]  # it also stands for what is unknown


def test_the_weights_fit() -> None:
    parts = [blueprint.autoencoder(), blueprint.denoiser(), blueprint.text_encoder(blueprint.tokenizer())]
    assert sum(weight.numel() for part in parts for weight in part.parameters()) * 2 < 12e6
