from __future__ import annotations

import pytest

from app.settings.resolve import ConfigError, examine


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"dtype": "int8"}, "stage 0 (speech): dtype must be auto, bfloat16, float16 or float32; got 'int8'"),
        (
            {"stage_overrides": {"0": {"engine_args": {"vocodr": "x"}}}},
            "stage 0 (speech): engine argument 'vocodr' is unknown to the speech engine; did you mean 'vocoder'?",
        ),
        (
            {"speaker_embeddings": {"a": 1}},
            "stage 0 (speech): engine argument 'speaker_embeddings': Expected `str`, got `int` - at `$[...]`; "
            "got {'a': 1}",
        ),
        (
            {"family": "tacotron"},
            "flag --family: expected one of hibari, vits, speecht5, bark, csm, dia; got 'tacotron'",
        ),
    ],
)
def test_wrong_arguments(typed: dict[str, object], told: str, speech_model: str) -> None:
    with pytest.raises(ConfigError) as caught:
        examine({"model": speech_model, **typed}, {}, source="flag")
    assert caught.value.problems == [told]


@pytest.mark.parametrize(
    "typed",
    [{"family": "vits"}, {"vocoder": "org/x"}, {"speaker_embeddings": {"a": "a.npy"}}],
    ids=lambda x: next(iter(x)),
)
def test_the_demos_voice_takes_none_of_what_is_for_models(typed: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"stage 1 \(speech\): --.* is for models of your own, and the demo's voice is"
    ):
        examine({"model": "demo", **typed}, {})
