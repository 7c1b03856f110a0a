"""What sound costs in tokens, and the Usage event of an answer that is sound."""

from __future__ import annotations

import math

import msgspec

from app.cluster.messages import Usage

TOKEN_S = 0.05
"""Seconds of sound that count as one audio token where the model has no codec tokens of its own."""


def audio_tokens(samples: int, rate: int, token_s: float = TOKEN_S) -> int:
    """Tokens of `samples` samples at `rate` Hz; one that has begun counts."""
    return math.ceil(round(samples / rate / token_s, 6))


def sound_usage(text: int, said: int, heard: int = 0) -> Usage:
    """The Usage of an answer with `said` tokens of sound, to `text` tokens of text and `heard` ones of a recording."""
    details = {
        "prompt_tokens_details": {"text_tokens": text, "audio_tokens": heard},
        "completion_tokens_details": {"text_tokens": 0, "audio_tokens": said},
    }
    return Usage(text + heard, said, msgspec.json.encode(details))
