"""No event of a client is a fault of ours, whatever is in it."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocol.errors import ApiError
from app.protocol.realtimeaudio import RATE, decode_samples, wav_base64
from app.protocol.realtimeclient import BadEventError, ItemCreate, ResponseCreate, SessionUpdate, decode_event
from app.protocol.realtimeitems import judge_item
from app.protocol.realtimeresponse import response_params
from app.protocol.realtimesession import Session, changed

TYPES = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "conversation.item.create",
    "conversation.item.truncate",
    "response.create",
    "response.cancel",
)
EVENT_FIELDS = ("event_id", "session", "audio", "item", "item_id", "audio_end_ms", "response", "no_such")
SESSION_FIELDS = ("instructions", "audio", "tools", "tool_choice", "tracing", "temperature", "voice", "turn_detection")
RESPONSE_FIELDS = ("instructions", "audio", "input", "metadata", "max_output_tokens", "modalities", "conversation")
SESSION = Session(id="sess_1", model="m", output_modalities=["text"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
NAMES = st.sampled_from(("input", "output", "format", "turn_detection", "voice", "type", "name")) | st.text(max_size=5)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8)


def status_of(text: str) -> int:
    """As HTTP tells it: 200 for an event that can be acted on."""
    try:
        match decode_event(text):
            case SessionUpdate(session=change):
                msgspec.json.encode(changed(SESSION, change))
            case ResponseCreate(response=asked):
                msgspec.json.encode(response_params(asked or {}))
            case ItemCreate(item=item):
                judge_item(item, "item")
    except BadEventError as mistake:
        return mistake.error.status
    except ApiError as refusal:
        return refusal.status
    return 200


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional=dict.fromkeys(EVENT_FIELDS, VALUES)))
def test_any_fields(fields: dict[str, Any]) -> None:
    assert status_of(msgspec.json.encode(fields).decode()) in (200, 400, 413)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(SESSION_FIELDS, VALUES)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(RESPONSE_FIELDS, VALUES)),
)
def test_any_settings(session: dict[str, Any], response: dict[str, Any]) -> None:
    for event in ({"type": "session.update", "session": session}, {"type": "response.create", "response": response}):
        assert status_of(msgspec.json.encode(event).decode()) in (200, 400)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text() | VALUES.map(lambda value: msgspec.json.encode(value).decode()))
def test_any_text(text: str) -> None:
    assert status_of(text) == 400


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_deep_objects(depth: int) -> None:
    deep = '{"audio":' * depth + "1" + "}" * depth
    assert status_of(f'{{"type": "session.update", "session": {deep}}}') == 400
    tools = f'[{{"name": "x", "parameters": {deep}}}]'
    assert status_of(f'{{"type": "session.update", "session": {{"tools": {tools}}}}}') in (200, 400)


def test_half_a_surrogate_pair() -> None:
    assert status_of('{"type": "input_audio_buffer.append", "audio": "\\ud800"}') == 400
    assert status_of('{"type": "\ud800"}') == 400


@pytest.mark.parametrize("count", range(6))
def test_a_file_of_samples_that_stay_base64(count: int) -> None:
    samples = bytes(range(2 * count))
    file = base64.b64decode(wav_base64(base64.b64encode(samples).decode()), validate=True)
    with wave.open(io.BytesIO(file)) as read:
        assert (read.getframerate(), read.getsampwidth(), read.getnchannels()) == (RATE, 2, 1)
        assert read.readframes(read.getnframes()) == samples


@pytest.mark.parametrize("text", ["AAA", "AA==", "A A A", "\u00e4", "AAAA\n"])
def test_samples_that_are_none(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode_samples(text, "audio")
    assert (caught.value.body.error.param, caught.value.body.error.code) == ("audio", "invalid_audio")
