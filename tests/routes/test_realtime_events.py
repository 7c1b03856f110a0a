"""/v1/realtime: the session and the conversation as a client changes them, and every mistake that it can make."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.cluster.messages import Delta
from app.protocol import realtimeclient
from app.realtime import conversation
from tests.routes.realtime import Talk, Talking, refusal, sound, spoken, talking
from tests.routes.serving import Served

PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
def model() -> Talking:
    model = Talking()
    model.speak_aloud()
    model.inputs = ["text", "audio", "image"]
    return model


@pytest.fixture
def served(model: Talking, tmp_path: Path) -> Served:
    return Served(model, tmp_path, slow_client_timeout_s=5)


@pytest.fixture
async def talk(served: Served) -> AsyncIterator[Talk]:
    async with talking(served) as talk:
        yield talk


# ---------------------------------------------------------------------------------------------------- the session


async def test_a_change_keeps_what_it_does_not_name(talk: Talk) -> None:
    before = await talk.update()
    assert before["audio"]["input"]["turn_detection"]["threshold"] == 0.5
    detection = {"type": "server_vad", "silence_duration_ms": 200}
    after = await talk.update(instructions="Be brief.", audio={"input": {"turn_detection": detection}})
    expected = {**before["audio"]["input"]["turn_detection"], "silence_duration_ms": 200}
    assert after["audio"]["input"]["turn_detection"] == expected
    assert after["audio"]["output"] == before["audio"]["output"]
    assert after["instructions"] == "Be brief."
    off = await talk.update(audio={"input": {"turn_detection": None}})
    assert off["audio"]["input"]["turn_detection"] is None
    assert off["instructions"] == "Be brief."


async def test_a_change_with_a_mistake_changes_nothing(talk: Talk) -> None:
    before = await talk.update(instructions="Be brief.")
    talk.send("session.update", session={"instructions": "Be long.", "temperature": 9})
    assert await talk.refused() == ("session.temperature", "invalid_value")
    assert await talk.update() == before


async def test_sessions_of_the_first_version_of_the_api(talk: Talk) -> None:
    session = await talk.update(
        modalities=["text", "audio"],
        voice="heart",
        input_audio_format="pcm16",
        output_audio_format="pcm16",
        turn_detection={"type": "server_vad", "threshold": 0.7},
        max_response_output_tokens=100,
        temperature=0.8,
    )
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["output"]["voice"] == "heart"
    assert session["audio"]["input"]["turn_detection"]["threshold"] == 0.7
    assert (session["max_output_tokens"], session["temperature"]) == (100, 0.8)
    assert "modalities" not in session


async def test_a_client_may_send_back_the_session(talk: Talk) -> None:
    session = await talk.update()
    assert await talk.update(**session) == session


UPDATES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"instrctions": "x"}, "session.instrctions", "unknown_parameter", "instructions"),
    ({"audio": {"input": {"turn_detectoin": None}}}, "session.audio.input.turn_detectoin", "unknown_parameter", "turn"),
    ({"turn_detection": {"treshold": 1}}, "session.turn_detection.treshold", "unknown_parameter", "threshold"),
    ({"turn_detection": {"threshold": 2}}, "session.turn_detection.threshold", "invalid_value", "<= 1"),
    ({"turn_detection": {"type": "semantic_vad"}}, "session.turn_detection.type", "unsupported_parameter", "complete"),
    (
        {"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}},
        "session.audio.input.turn_detection.idle_timeout_ms",
        "unsupported_parameter",
        "without the client",
    ),
    (
        {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}},
        "session.audio.input.noise_reduction",
        "unsupported_parameter",
        "recorded",
    ),
    (
        {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
        "session.audio.output.format.type",
        "unsupported_parameter",
        "24 kHz",
    ),
    ({"input_audio_format": "g711_ulaw"}, "session.input_audio_format.type", "unsupported_parameter", "24 kHz"),
    ({"voice": "x", "audio": {"output": {"voice": "y"}}}, "session.voice", "invalid_value", "audio.output.voice"),
    ({"voice": "x", "audio": 5}, "session.audio", "invalid_value", "object"),
    ({"instructions": None}, "session.instructions", "invalid_value", "null"),
    ({"output_modalities": ["video"]}, "session.output_modalities[0]", "invalid_value", "text, audio"),
    ({"output_modalities": []}, "session.output_modalities", "invalid_value", "length"),
    ({"type": "transcription"}, "session.type", "unsupported_parameter", "realtime"),
    ({"id": "sess_x"}, "session.id", "invalid_value", "changed"),
    ({"model": "gpt-realtime"}, "model", "model_not_found", "smol"),
    ({"prompt": {"id": "x"}}, "session.prompt", "unsupported_parameter", "instructions"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "session.tools[0].type", "invalid_value", "function"),
    ({"truncation": {"type": "retention_ratio"}}, "session.truncation", "unsupported_parameter", "auto"),
    (
        {"audio": {"input": {"transcription": {"model": "whisper-1"}}}},
        "session.audio.input.transcription",
        "unsupported_parameter",
        "write down",
    ),
]


@pytest.mark.parametrize(("session", "param", "code", "hint"), UPDATES, ids=lambda value: str(value)[:40])
async def test_a_session_that_cannot_be(talk: Talk, session: dict[str, Any], param: str, code: str, hint: str) -> None:
    talk.send("session.update", session=session, event_id="e1")
    error = await talk.receive()
    assert refusal(error) == (param, code)
    assert hint in error["error"]["message"]
    assert error["error"]["event_id"] == "e1"


async def test_a_model_that_does_not_hear_says_so(talk: Talk, model: Talking) -> None:
    model.inputs = ["text"]
    talk.send("session.update", session={"turn_detection": {"type": "server_vad"}})
    assert await talk.refused() == ("session.audio.input.turn_detection", "unsupported_parameter")
    talk.send("input_audio_buffer.append", audio="AAAA")
    assert await talk.refused() == ("audio", "unsupported_parameter")
    for part in ({"type": "input_audio", "audio": "AAAA"}, {"type": "input_image", "image_url": PIXEL}):
        item = {"type": "message", "role": "user", "content": [part]}
        talk.send("conversation.item.create", item=item)
        assert await talk.refused() == ("item.content[0].type", "unsupported_parameter")


# ------------------------------------------------------------------------------------------------------- mistakes


MISTAKES = [
    ("x", None, "invalid_json"),
    ('{"type": "response.create"', None, "invalid_json"),
    ('{"type": "response.create", "response": {}, "response": {}}', None, "invalid_json"),
    ("[1]", None, "invalid_event"),
    ("{}", "type", "invalid_event"),
    ('{"type": 5}', "type", "invalid_event"),
    ('{"type": "response.creat"}', "type", "unknown_event"),
    ('{"type": "output_audio_buffer.clear"}', "type", "unknown_event"),
    ('{"type": "response.cancel", "respnse_id": "x"}', "respnse_id", "unknown_parameter"),
    ('{"type": "response.create", "response": 5}', "response", "invalid_value"),
    ('{"type": "response.create", "response": {"output_modalities": ["x"]}}', "response.output_modalities[0]", None),
    ('{"type": "response.create", "response": {"modality": "x"}}', "response.modality", "unknown_parameter"),
    ('{"type": "response.create", "response": {"metadata": {"a": 1}}}', "response.metadata[...]", "invalid_value"),
    ('{"type": "response.create", "response": {"conversation": "c1"}}', "response.conversation", "invalid_value"),
    ('{"type": "response.create", "response": {"speed": 9}}', "response.speed", "invalid_value"),
    (
        '{"type": "response.create", "response": {"turn_detection": {}}}',
        "response.turn_detection",
        "unsupported_parameter",
    ),
    ('{"type": "session.update"}', "session", "missing_required_parameter"),
    ('{"type": "session.update", "session": []}', "session", "invalid_value"),
    ('{"type": "input_audio_buffer.append"}', "audio", "missing_required_parameter"),
    ('{"type": "input_audio_buffer.append", "audio": 5}', "audio", "invalid_value"),
    ('{"type": "input_audio_buffer.append", "audio": "no base64"}', "audio", "invalid_audio"),
    ('{"type": "input_audio_buffer.append", "audio": "\u00e4"}', "audio", "invalid_audio"),
    ('{"type": "input_audio_buffer.append", "audio": "AAA="}', None, None),
    ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "audio", "invalid_audio"),
    ('{"type": "input_audio_buffer.append", "audio": "%s"}' % ("A" * (5 << 20)), None, "event_too_large"),
    ('{"type": "input_audio_buffer.commit"}', None, "input_audio_buffer_commit_empty"),
    ('{"type": "conversation.item.retrieve", "item_id": "x"}', "item_id", "item_not_found"),
    ('{"type": "conversation.item.delete", "item_id": "x"}', "item_id", "item_not_found"),
    (
        '{"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 0}',
        "item_id",
        "item_not_found",
    ),
    (
        '{"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": -1}',
        "audio_end_ms",
        "invalid_value",
    ),
    ('{"type": "response.cancel"}', None, "response_cancel_not_active"),
]


@pytest.mark.parametrize(("text", "param", "code"), MISTAKES, ids=lambda value: str(value)[:60])
async def test_a_mistake_is_told_and_the_socket_stays(
    talk: Talk, text: str, param: str | None, code: str | None
) -> None:
    talk.socket.send_frame(text=text)
    if code is not None:
        assert await talk.refused() == (param, code)
    await talk.say("Hi")
    assert (await talk.answer())[-1]["response"]["status"] == "completed"


ITEMS: list[tuple[Any, str, str]] = [
    (5, "item", "invalid_value"),
    ({"type": "mcp_call"}, "item.type", "invalid_value"),
    ({"type": "message", "role": "user"}, "item.content", "missing_required_parameter"),
    ({"type": "message", "role": "user", "content": []}, "item.content", "invalid_value"),
    ({"type": "message", "role": "tool", "content": []}, "item.role", "invalid_value"),
    (
        {"type": "message", "role": "user", "content": [{"type": "output_text", "text": "x"}]},
        "item.content[0].type",
        "invalid_value",
    ),
    (
        {"type": "message", "role": "system", "content": [{"type": "input_audio", "audio": ""}]},
        "item.content[0].type",
        "invalid_value",
    ),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_text", "txt": "x"}]},
        "item.content[0].txt",
        "unknown_parameter",
    ),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_audio"}]},
        "item.content[0].audio",
        "missing_required_parameter",
    ),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AA=="}]},
        "item.content[0].audio",
        "invalid_audio",
    ),
    (
        {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "audio": "AAAA"}]},
        "item.content[0].audio",
        "unsupported_parameter",
    ),
    ({"type": "item_reference", "id": "x"}, "item.type", "invalid_value"),
    ({"type": "function_call_output", "output": "x"}, "item.call_id", "missing_required_parameter"),
]


@pytest.mark.parametrize(("item", "param", "code"), ITEMS, ids=lambda value: str(value)[:60])
async def test_an_item_that_cannot_be(talk: Talk, item: Any, param: str, code: str) -> None:
    talk.send("conversation.item.create", item=item)
    assert await talk.refused() == (param, code)


async def test_frames_of_bytes_are_no_events(talk: Talk) -> None:
    talk.socket.send_frame(bytes=b"\0\1")
    assert await talk.refused() == (None, "invalid_event")


# ------------------------------------------------------------------------------------------------ the conversation


async def test_items_are_put_where_the_client_wants_them(talk: Talk, model: Talking) -> None:
    await talk.say("two", id="b")
    for text, item_id, after in (("one", "a", "root"), ("three", "c", "b")):
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content, "id": item_id}
        talk.send("conversation.item.create", item=item, previous_item_id=after)
        added, done = await talk.receive(), await talk.receive()
        assert (added["type"], done["type"]) == ("conversation.item.added", "conversation.item.done")
        assert added["previous_item_id"] == (None if after == "root" else after)
    talk.send("conversation.item.create", item=item, previous_item_id="x")
    assert await talk.refused() == ("item.id", "invalid_value")
    talk.send("conversation.item.create", item={**item, "id": "d"}, previous_item_id="x")
    assert await talk.refused() == ("previous_item_id", "item_not_found")
    talk.send("conversation.item.delete", item_id="b")
    assert (await talk.receive())["item_id"] == "b"
    await talk.answer(output_modalities=["text"])
    assert [message["content"] for message in model.messages()] == ["one", "three"]


async def test_sound_and_pictures_reach_the_model(talk: Talk, model: Talking) -> None:
    samples = base64.b64encode(bytes(range(200))).decode()
    content = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_audio", "audio": samples},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
    ]
    talk.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    done = (await talk.until("conversation.item.done"))[-1]["item"]
    assert done["content"][1] == {"type": "input_audio"}, "sound is told only where it is asked for"
    talk.send("conversation.item.retrieve", item_id=done["id"])
    assert (await talk.receive())["item"]["content"][1]["audio"] == samples
    await talk.answer(output_modalities=["text"])
    [message] = model.messages()
    text, heard, seen = message["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert heard["input_audio"]["format"] == "wav"
    file = base64.b64decode(heard["input_audio"]["data"], validate=True)
    assert (file[:4], file[-200:]) == (b"RIFF", bytes(range(200)))
    assert seen == {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}


async def test_what_has_not_been_heard_is_forgotten(talk: Talk, model: Talking) -> None:
    model.scripts = [
        spoken(Delta(0, "One two. Three four."), sound(24_000, "One two. "), sound(24_000, "Three four.")),
        spoken(Delta(0, "Yes.")),
    ]
    question = await talk.say("Count.")
    item_id = (await talk.answer())[-1]["response"]["output"][0]["id"]
    for fields, param in (
        ({"item_id": item_id, "content_index": 1, "audio_end_ms": 1}, "content_index"),
        ({"item_id": item_id, "content_index": 0, "audio_end_ms": 2001}, "audio_end_ms"),
        ({"item_id": question, "content_index": 0, "audio_end_ms": 1}, "item_id"),
    ):
        talk.send("conversation.item.truncate", **fields)
        assert await talk.refused() == (param, "invalid_value")
    talk.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=1600)
    truncated = await talk.receive()
    assert (truncated["type"], truncated["audio_end_ms"]) == ("conversation.item.truncated", 1600)
    await talk.say("Go on.")
    await talk.answer()
    assert model.messages()[1] == {"role": "assistant", "content": "One two. Three"}


async def test_an_item_that_a_response_works_on(talk: Talk, model: Talking) -> None:
    model.scripts = [[[Delta(0, "a")], asyncio.Event()]]
    await talk.say("Hi")
    talk.send("response.create")
    item_id = (await talk.until("response.output_audio_transcript.delta"))[-1]["item_id"]
    talk.send("conversation.item.delete", item_id=item_id)
    assert await talk.refused() == ("item_id", None)
    talk.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0)
    assert await talk.refused() == ("item_id", "invalid_value")
    talk.send("response.cancel")
    talk.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0)
    assert (await talk.until("conversation.item.truncated"))[-1]["item_id"] == item_id


async def test_a_conversation_is_bounded(
    talk: Talk, served: Served, model: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "MAX_ITEMS", 3)
    ids = [await talk.say(f"{number}") for number in range(3)]
    content = [{"type": "input_text", "text": "3"}]
    talk.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    deleted = await talk.receive()
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", ids[0])
    await talk.until("conversation.item.done")
    await talk.update(truncation="disabled")
    talk.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    assert await talk.refused() == ("item", "conversation_full")


async def test_an_item_that_is_larger_than_a_conversation(served: Served) -> None:
    served.settings.speech.realtime_max_conversation_bytes = 2000
    async with talking(served) as talk:
        await talk.say("x" * 1000)
        first = await talk.say("x" * 400)
        content = [{"type": "input_text", "text": "x" * 3000}]
        talk.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        assert await talk.refused() == ("item", "conversation_full")
        talk.send("conversation.item.retrieve", item_id=first)
        assert (await talk.receive())["type"] == "conversation.item.retrieved"


def test_the_largest_event_fits_into_what_granian_reads() -> None:
    assert realtimeclient.MAX_EVENT < 16 << 20
