from __future__ import annotations

import msgspec
import pytest

from app.engines.soundusage import audio_tokens, sound_usage


@pytest.mark.parametrize(
    ("samples", "rate", "tokens"), [(0, 24_000, 0), (1, 24_000, 1), (24_000, 24_000, 20), (24_001, 24_000, 21)]
)
def test_a_token_is_a_twentieth_of_a_second(samples: int, rate: int, tokens: int) -> None:
    assert audio_tokens(samples, rate) == tokens


@pytest.mark.parametrize("count", range(1, 400, 7))
def test_whole_tokens_are_not_rounded_up(count: int) -> None:
    assert audio_tokens(count * 2205, 44_100) == count


def test_usage_tells_text_from_sound() -> None:
    usage = sound_usage(3, 20, heard=5)
    assert (usage.prompt_tokens, usage.completion_tokens) == (8, 20)
    assert msgspec.json.decode(usage.details) == {
        "prompt_tokens_details": {"text_tokens": 3, "audio_tokens": 5},
        "completion_tokens_details": {"text_tokens": 0, "audio_tokens": 20},
    }
