"""Responses of /v1/realtime over a scripted model: what is asked, how OpenAI's events follow each other."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.cluster.messages import Audio, Chunk, Delta, Done, Finish, Usage
from app.protocol.errors import ApiError
from app.protocol.speechtask import decode_task
from app.routes import realtimerunning
from tests.routes.realtime import Talk, Talking, kinds, refusal, sound, spoken, talking, words
from tests.routes.serving import Served


@pytest.fixture
def model() -> Talking:
    return Talking()


@pytest.fixture
def served(model: Talking, tmp_path: Path) -> Served:
    return Served(model, tmp_path, slow_client_timeout_s=5)


@pytest.fixture
async def talk(served: Served) -> AsyncIterator[Talk]:
    async with talking(served) as talk:
        yield talk


@pytest.fixture
async def heard(served: Served, model: Talking) -> AsyncIterator[Talk]:
    """A talk with a model that speaks."""
    model.speak_aloud()
    async with talking(served) as talk:
        yield talk


def cut(samples: bytes, begin: int, end: int) -> Audio:
    """A piece as an engine cuts it: its base64 is of whole bytes, not of whole samples."""
    return Audio(0, memoryview(base64.b64encode(samples[begin:end])), "pcm", 24_000, (end - begin) // 2)


def done(events: list[Any]) -> Any:
    assert events[-1]["type"] == "response.done"
    return events[-1]["response"]


async def test_an_answer_in_text(talk: Talk, model: Talking) -> None:
    question = await talk.say("Hi")
    events = await talk.answer()
    assert kinds(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    response, [item] = done(events), done(events)["output"]
    assert (response["status"], response["status_details"]) == ("completed", {"type": "completed"})
    assert events[0]["response"] == response | {
        "status": "in_progress",
        "status_details": None,
        "output": [],
        "usage": None,
    }
    assert (item["status"], item["content"]) == ("completed", [{"type": "output_text", "text": "Hello there."}])
    assert [event["previous_item_id"] for event in events if "previous_item_id" in event] == [question, question]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (5, 2)
    assert len({event["event_id"] for event in events}) == len(events)
    assert model.body() == {
        "model": "smol",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_conversation_goes_on(talk: Talk, model: Talking) -> None:
    await talk.update(instructions="Be brief.")
    await talk.say("Hi")
    await talk.answer()
    await talk.say("And?")
    await talk.answer()
    assert model.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "And?"},
    ]


async def test_an_answer_that_is_heard(heard: Talk, model: Talking) -> None:
    samples = bytes(range(24))
    first, second, third = (cut(samples, begin, end) for begin, end in ((0, 9), (9, 18), (18, 24)))
    model.scripts = [spoken(Delta(0, "Hello "), first, Delta(0, "there."), second, third)]
    await heard.update(audio={"output": {"voice": "heart", "speed": 1.5}})
    await heard.say("Hi")
    events = await heard.answer()
    assert kinds(events)[3:-3] == [
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_audio.delta"]
    sounds = [base64.b64decode(delta, validate=True) for delta in deltas]
    assert b"".join(sounds) == samples
    assert [len(piece) % 2 for piece in sounds] == [0, 0, 0], "a delta that ends within a sample is noise"
    [item] = done(events)["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": "Hello there."}]
    assert done(events)["usage"]["output_token_details"] == {"text_tokens": 2, "audio_tokens": 7}
    task = decode_task(model.spoken[0])
    assert (task.voice, task.speed, task.format, task.sample_rate) == ("heart", 1.5, "pcm", 24_000)
    assert (task.streamed, task.base64, task.appended) == (True, True, True)


async def test_long_sound_comes_in_pieces_that_clients_take(heard: Talk, model: Talking) -> None:
    model.scripts = [spoken(Delta(0, "x"), sound(24_000 * 20))]
    await heard.say("Hi")
    deltas = [event["delta"] for event in await heard.answer() if event["type"] == "response.output_audio.delta"]
    assert max(map(len, deltas)) <= 64 << 10
    assert sum(len(base64.b64decode(delta)) for delta in deltas) == 2 * 24_000 * 20


async def test_a_response_has_settings_of_its_own(heard: Talk, model: Talking) -> None:
    await heard.say("Hi")
    events = await heard.answer(
        instructions="Shout.",
        output_modalities=["text"],
        max_output_tokens=7,
        temperature=0,
        metadata={"mine": "1"},
    )
    body = model.body()
    assert body["messages"][0] == {"role": "system", "content": "Shout."}
    assert (body["max_completion_tokens"], body["temperature"]) == (7, 0)
    response = done(events)
    assert (response["output_modalities"], response["metadata"]) == (["text"], {"mine": "1"})
    assert response["max_output_tokens"] == 7
    await heard.say("And?")
    await heard.answer()
    assert "max_completion_tokens" not in model.body()
    assert model.messages()[0]["role"] == "user"


async def test_a_response_beside_the_conversation(talk: Talk, model: Talking) -> None:
    item_id = await talk.say("Hi")
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sum it up."}]}
    reference = {"type": "item_reference", "id": item_id}
    events = await talk.answer(conversation="none", input=[reference, message])
    assert [message["content"] for message in model.messages()] == ["Hi", "Sum it up."]
    assert not [kind for kind in kinds(events) if kind.startswith("conversation.")]
    assert done(events)["conversation_id"] is None
    await talk.answer()
    assert [message["content"] for message in model.messages()] == ["Hi"]
    talk.send("response.create", response={"conversation": "none", "input": [{"type": "item_reference", "id": "x"}]})
    assert await talk.refused() == ("response.input[0].id", "item_not_found")


async def test_one_response_of_the_conversation_at_a_time(talk: Talk, model: Talking) -> None:
    model.scripts = [[[Delta(0, "a")], asyncio.Event()]]
    await talk.say("Hi")
    talk.send("response.create")
    await talk.until("response.output_text.delta")
    talk.send("response.create")
    assert await talk.refused() == (None, "conversation_already_has_active_response")
    for _ in range(realtimerunning.MAX_ASIDE):
        talk.send("response.create", response={"conversation": "none"})
        await talk.until("response.output_text.delta")
    talk.send("response.create", response={"conversation": "none"})
    assert await talk.refused() == (None, "too_many_responses")


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [("length", "incomplete", "max_output_tokens"), ("content_filter", "incomplete", "content_filter")],
)
async def test_an_answer_that_is_cut_off(talk: Talk, model: Talking, reason: str, status: str, why: str) -> None:
    model.scripts = [words("a", reason=reason)]
    await talk.say("Hi")
    response = done(await talk.answer())
    assert (response["status"], response["status_details"]) == (status, {"type": status, "reason": why})
    assert response["output"][0]["status"] == "incomplete"


async def test_an_answer_of_nothing(talk: Talk, model: Talking) -> None:
    model.scripts = [words()]
    await talk.say("Hi")
    events = await talk.answer()
    assert kinds(events) == ["response.created", "response.done"]
    assert done(events)["output"] == []


async def test_a_response_that_is_cancelled(talk: Talk, model: Talking) -> None:
    model.scripts = [[[Delta(0, "So ")], asyncio.Event()], words("Yes.")]
    await talk.say("Hi")
    talk.send("response.create")
    await talk.until("response.output_text.delta")
    talk.send("response.cancel")
    events = await talk.until("response.done")
    assert kinds(events)[0] == "response.output_text.done"
    response = done(events)
    assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert response["output"][0]["status"] == "incomplete"
    assert model.closed_for == ["client_disconnect"], "the stages still work on it"
    talk.send("response.cancel")
    assert await talk.refused() == (None, "response_cancel_not_active")
    await talk.say("Go on.")
    assert done(await talk.answer())["status"] == "completed"
    assert model.messages()[1] == {"role": "assistant", "content": "So "}


async def test_a_response_that_is_cancelled_before_a_replica_has_taken_it(talk: Talk, model: Talking) -> None:
    model.before = asyncio.Event().wait
    await talk.say("Hi")
    talk.send("response.create")
    talk.send("response.cancel")
    events = await talk.until("response.done")
    assert kinds(events) == ["response.created", "response.done"]
    assert done(events)["status"] == "cancelled"


async def test_one_of_several_responses_is_cancelled(talk: Talk, model: Talking) -> None:
    model.scripts = [[[Delta(0, "a")], asyncio.Event()]]
    await talk.say("Hi")
    talk.send("response.create", response={"conversation": "none"})
    aside = (await talk.until("response.output_text.delta"))[0]["response"]["id"]
    talk.send("response.create")
    await talk.until("response.output_text.delta")
    talk.send("response.cancel", response_id=aside)
    assert done(await talk.until("response.done"))["id"] == aside
    talk.send("response.cancel", response_id="resp_x")
    assert await talk.refused() == (None, "response_cancel_not_active")


async def test_what_a_replica_refuses_is_an_error(heard: Talk, model: Talking) -> None:
    model.refusals = [ApiError(400, "there is no voice 'alloy'", param="audio.voice", code="invalid_value")]
    await heard.say("Hi")
    heard.send("response.create", event_id="mine")
    error = await heard.receive()
    assert refusal(error) == ("audio.output.voice", "invalid_value")
    assert error["error"]["event_id"] == "mine"
    assert done(await heard.answer())["status"] == "completed"


async def test_a_response_that_fails_in_the_middle(talk: Talk, model: Talking) -> None:
    failure = ApiError(503, "the replica is lost", code="replica_lost")
    model.scripts = [[[Delta(0, "a")], failure], words("b")]
    await talk.say("Hi")
    response = done(await talk.answer())
    assert response["status"] == "failed"
    assert response["status_details"]["error"] == {
        "type": "service_unavailable_error",
        "code": "replica_lost",
        "message": "the replica is lost",
    }
    assert model.closed_for == ["client_disconnect"]
    assert done(await talk.answer())["status"] == "completed"


async def test_a_fault_of_ours_closes_the_socket(talk: Talk, model: Talking, caplog: pytest.LogCaptureFixture) -> None:
    model.scripts = [[[Delta(0, "a")], ValueError("a secret")]]
    await talk.say("Hi")
    talk.send("response.create")
    assert refusal((await talk.until("error"))[-1]) == (None, "internal_error")
    assert await talk.socket.end() == (1011, "internal error")
    assert "a secret" in caplog.text


async def test_who_has_got_the_last_event_may_ask_again(talk: Talk, model: Talking) -> None:
    talk.socket.lingers = 50
    await talk.say("Hi")
    for _ in range(2):
        model.refusals = [ApiError(400, "no", code="invalid_value")]
        talk.send("response.create")
        assert await talk.refused() == (None, "invalid_value")
        assert done(await talk.answer())["status"] == "completed"


# ------------------------------------------------------------------------------------------------------- functions


def call(index: int, **function: str) -> Chunk:
    member: dict[str, Any] = {"index": index, "function": function}
    if "name" in function:
        member |= {"id": f"call_{index}", "type": "function"}
    return Chunk(0, msgspec.json.encode({"delta": {"tool_calls": [member]}}))


TOOL = {"type": "function", "name": "weather", "description": "The weather", "parameters": {"type": "object"}}


async def test_functions_are_called(talk: Talk, model: Talking) -> None:
    pieces = [
        Chunk(0, b'{"delta":{"content":"Let me see."}}'),
        call(0, name="weather", arguments=""),
        call(0, arguments='{"city":'),
        call(0, arguments='"Rome"}'),
        call(1, name="weather", arguments="{}"),
    ]
    model.scripts = [[*([piece] for piece in pieces), [Finish(0, "tool_calls"), Usage(1, 2), Done()]], words("Sunny.")]
    await talk.update(tools=[TOOL], tool_choice={"type": "function", "name": "weather"})
    await talk.say("Weather?")
    events = await talk.answer()
    assert model.body()["tools"] == [
        {"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}
    ]
    assert model.body()["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    message, first, second = done(events)["output"]
    assert message["content"] == [{"type": "output_text", "text": "Let me see."}]
    assert (first["name"], first["arguments"], first["call_id"]) == ("weather", '{"city":"Rome"}', "call_0")
    assert (second["arguments"], second["call_id"]) == ("{}", "call_1")
    ends = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(end["output_index"], end["arguments"]) for end in ends] == [(1, '{"city":"Rome"}'), (2, "{}")]
    for number in (0, 1):
        item = {"type": "function_call_output", "call_id": f"call_{number}", "output": "sun"}
        talk.send("conversation.item.create", item=item)
        await talk.until("conversation.item.done")
    await talk.answer(tool_choice="none")
    assert "tools" not in model.body()
    assistant, *tools = model.messages()[1:]
    assert [called["id"] for called in assistant["tool_calls"]] == ["call_0", "call_1"]
    assert tools == [{"role": "tool", "tool_call_id": f"call_{number}", "content": "sun"} for number in (0, 1)]


# ------------------------------------------------------------------------------------------------- long conversations


async def test_a_conversation_that_is_too_long_for_the_model_loses_its_beginning(talk: Talk, model: Talking) -> None:
    too_long = ApiError(400, "too long", param="messages", code="context_length_exceeded")
    for text in ("one", "two", "three", "four"):
        await talk.say(text)
    model.refusals = [too_long, too_long]
    assert done(await talk.answer())["status"] == "completed"
    assert [len(model.messages(number)) for number in range(3)] == [4, 2, 1]
    assert model.messages()[0]["content"] == "four"
    await talk.update(truncation="disabled")
    model.refusals = [too_long]
    talk.send("response.create")
    assert await talk.refused() == ("messages", "context_length_exceeded")
    await talk.update(truncation="auto")
    model.refusals = [too_long] * 9
    talk.send("response.create")
    assert await talk.refused() == ("messages", "context_length_exceeded")


async def test_nothing_to_answer(talk: Talk) -> None:
    talk.send("response.create")
    assert await talk.refused() == (None, "conversation_empty")
    assert done(await talk.answer(instructions="Say hello."))["status"] == "completed"


async def test_a_model_that_does_not_speak_says_so(talk: Talk) -> None:
    await talk.say("Hi")
    talk.send("response.create", response={"output_modalities": ["audio"]})
    assert await talk.refused() == ("response.output_modalities", "unsupported_parameter")
    talk.send("session.update", session={"output_modalities": ["audio"]})
    assert await talk.refused() == ("session.output_modalities", "unsupported_parameter")
    assert done(await talk.answer())["status"] == "completed"
