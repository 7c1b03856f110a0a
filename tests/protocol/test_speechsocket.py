"""No message of a client is a fault of ours."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocol.errors import ApiError
from app.protocol.speechsocket import BadMessageError, SessionConfig, decode_message
from app.settings.schema import SpeechConfig

TYPES = ("session.config", "input.text", "input.done", "input.cancel", "session.close", "ping")
FIELDS = ("text", "event_id", "voice", "speed", "seed", "model", "ref_audio", "references", "extra_params", "no_such")
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def status_of(text: str) -> int:
    """As HTTP tells it: 200 for a message that can be acted on."""
    try:
        message = decode_message(text)
        if isinstance(message, SessionConfig):
            message.task(SpeechConfig())
    except BadMessageError as mistake:
        return mistake.error.status
    except ApiError as refusal:
        return refusal.status
    return 200


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional=dict.fromkeys(FIELDS, VALUES)))
def test_any_fields(fields: dict[str, Any]) -> None:
    assert status_of(msgspec.json.encode(fields).decode()) in (200, 400, 413)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text() | VALUES.map(lambda value: msgspec.json.encode(value).decode()))
def test_any_text(text: str) -> None:
    assert status_of(text) == 400


def test_half_a_surrogate_pair() -> None:
    assert status_of('{"type": "input.text", "text": "\\ud800"}') == 400
