"""Engine arguments of a speech stage, typed."""

from __future__ import annotations

from typing import Any

import pytest

from app.engines.speech.options import SpeechOptions, read_options
from tests.engines.speech.asking import stage


def test_a_stage_on_the_cpu_with_all_of_it() -> None:
    given: dict[str, Any] = {
        "family": "speecht5",
        "dtype": "half",
        "max_num_seqs": 2,
        "max_sentence_chars": 100,
        "vocoder": "/gan",
        "speaker_embeddings": {"a": "a.npy"},
        "default_voice": "a",
        "revision": "main",
        "trust_remote_code": True,
    }
    options = read_options(stage(**given, default_sampling_params={"threshold": 0.4}))
    expected = given | {"dtype": "float16", "device": "cpu", "default_sampling_params": {"threshold": 0.4}}
    assert options == SpeechOptions(**expected)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"vocodr": "x"}, r"'vocodr' is unknown to the speech engine; did you mean 'vocoder'\?"),
        ({"max_num_seqs": -1}, "Expected `int` >= 0; got -1"),
        ({"speaker_embeddings": ["a.npy"]}, "'speaker_embeddings': Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_options(stage(**given))
