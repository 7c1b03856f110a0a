"""Requests for answers that are heard: whatever is sent, it is understood or refused with the field at fault."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.audiochat import AudioChat, Parts, Sound, parts_of, placed
from app.protocol.errors import ApiError
from app.protocol.speechtask import encode_task
from app.settings.schema import SpeechConfig

LIMITS = SpeechConfig()
VALID: dict[str, Any] = {"messages": [], "modalities": ["text", "audio"], "audio": {"voice": "a"}}

_NUMBERS = st.integers(-4, 4) | st.sampled_from([2**63, -(2**63) - 1, 10**30, 0.5, 1e308])
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text(max_size=6)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_MEMBERS = [field.encode_name for field in msgspec.structs.fields(Sound)]
_SOUNDS = st.dictionaries(st.sampled_from(_MEMBERS) | st.text(max_size=5), _VALUES, max_size=3)
_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(AudioChat.__struct_fields__, _VALUES),
        "audio": _VALUES | _SOUNDS,
        "sampling_params_list": _VALUES | st.lists(st.none() | _SOUNDS, max_size=3),
    },
)


@given(_FIELDS)
def test_anything_is_understood_or_refused(fields: dict[str, Any]) -> None:
    parts = understood(VALID | fields)
    if isinstance(parts, ApiError):
        found = parts.body.error
        assert (parts.status, found.type) == (400, "invalid_request_error")
        assert (found.param or "").partition(".")[0].partition("[")[0] in AudioChat.__struct_fields__, found
        return
    encode_task(parts.speech)
    assert json.loads(parts.chat).keys().isdisjoint({"modalities", "audio", "sampling_params_list"})


def understood(fields: dict[str, Any]) -> Parts | ApiError:
    try:
        return parts_of(json.dumps(fields).encode(), (0, 1), LIMITS)
    except ApiError as error:
        return error


def test_the_text_stage_gets_every_other_field_as_it_came() -> None:
    body = b'{"modalities": ["audio"], "audio": {}, "temperature": 1e0, "messages": [ {"role":"user"} ], "zzz": null}'
    assert parts_of(body, (0, 1), LIMITS).chat == b'{"temperature":1e0,"messages":[ {"role":"user"} ],"zzz":null}'


def test_what_an_uploaded_voice_is_called_in() -> None:
    audio = {"ref_audio": "data:,x"}
    task = parts_of(json.dumps(VALID | {"audio": audio}).encode(), (0, 1), LIMITS).speech
    assert task.sample is not None
    assert task.sample.param == "audio.ref_audio"


def test_a_talker_has_sampling_parameters_of_its_own() -> None:
    """Beside a thinker, whose fields are those of the chat, and a vocoder, which has members of `audio`."""
    given = [{"temperature": 1}, {"temperature": 0.5, "top_k": 3}, {"seed": 7}]
    audio = {"extra_params": {"top_p": 0.9}}
    body = json.dumps(VALID | {"audio": audio, "sampling_params_list": given}).encode()
    parts = parts_of(body, (0, 1, 2), LIMITS)
    assert json.loads(parts.chat)["temperature"] == 1
    assert (parts.speech.extra, parts.speech.seed) == ({"top_p": 0.9, "temperature": 0.5, "top_k": 3}, 7)
    error = placed(ApiError(400, "no", param="audio.top_k"), parts.places)
    assert error.body.error.param == "sampling_params_list[1].top_k"
    assert placed(ApiError(400, "no", param="audio.voice"), parts.places).body.error.param == "audio.voice"
    given[1]["top_p"] = 0.8
    with pytest.raises(ApiError, match=r"sampling_params_list\[1\].top_p says again what top_p says"):
        parts_of(json.dumps(VALID | {"audio": audio, "sampling_params_list": given}).encode(), (0, 1, 2), LIMITS)


@pytest.mark.parametrize("position", [0, 1])
def test_stages_are_told_apart_by_their_position(position: int) -> None:
    given = [{"speed": 2}, {"temperature": 1}]
    body = json.dumps(VALID | {"sampling_params_list": given if position else given[::-1]}).encode()
    parts = parts_of(body, (position, 1 - position), LIMITS)
    assert (parts.speech.speed, json.loads(parts.chat)["temperature"]) == (2.0, 1)
