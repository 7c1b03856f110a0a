"""Sound on /v1/realtime: turns, with and without voice activity detection, interruption, what is written down."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.cluster.messages import Delta, Done, Usage
from app.protocol.errors import ApiError
from app.protocol.listening import ListeningTask, decode_task
from tests.routes.realtime import Talk, Talking, kinds, refusal, silence, sound, spoken, talking, voice, words
from tests.routes.serving import Served, Step


@pytest.fixture
def model() -> Talking:
    model = Talking()
    model.inputs = ["text", "audio"]
    return model


@pytest.fixture
def served(model: Talking, tmp_path: Path) -> Served:
    return Served(model, tmp_path, slow_client_timeout_s=5)


@pytest.fixture
async def talk(served: Served) -> AsyncIterator[Talk]:
    async with talking(served) as talk:
        yield talk


def heard_by(message: Any) -> bytes:
    """The samples of the sound in a message of a chat."""
    [part] = message["content"]
    return base64.b64decode(part["input_audio"]["data"], validate=True)[54:]


async def test_a_turn_is_answered(talk: Talk, model: Talking) -> None:
    talk.hear(silence(1) + voice(1) + silence(1))
    events = await talk.until("response.done")
    assert kinds(events)[:6] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    started, stopped, committed, added, done = events[:5]
    assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (700, 2500)
    ids = {started["item_id"], stopped["item_id"], committed["item_id"], added["item"]["id"], done["item"]["id"]}
    assert len(ids) == 1
    assert done["item"]["content"] == [{"type": "input_audio"}]
    assert events[-1]["response"]["status"] == "completed"
    [message] = model.messages()
    assert heard_by(message) == silence(0.3) + voice(1) + silence(0.5)


async def test_a_turn_that_is_not_to_be_answered(talk: Talk, model: Talking) -> None:
    await talk.update(turn_detection={"type": "server_vad", "create_response": False})
    talk.hear(silence(1) + voice(1) + silence(1))
    await talk.until("conversation.item.done")
    talk.send("response.create")
    assert kinds(await talk.until("response.done"))[0] == "response.created"
    assert len(model.submitted) == 1


async def test_speech_interrupts(talk: Talk, model: Talking) -> None:
    model.scripts = [[[Delta(0, "Well, ")], asyncio.Event()], words("Yes.")]
    talk.hear(silence(1) + voice(1) + silence(1))
    await talk.until("response.output_text.delta")
    talk.hear(voice(0.5))
    events = await talk.until("response.done")
    assert kinds(events)[0] == "input_audio_buffer.speech_started"
    assert events[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert model.closed_for == ["client_disconnect"], "the stages still work on it"
    talk.hear(silence(1))
    assert (await talk.until("response.done"))[-1]["response"]["status"] == "completed"
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "user"]


async def test_speech_need_not_interrupt(talk: Talk, model: Talking) -> None:
    go_on = asyncio.Event()
    model.scripts = [[[Delta(0, "Well, ")], go_on, *words("yes.")]]
    await talk.update(turn_detection={"type": "server_vad", "interrupt_response": False})
    talk.hear(silence(1) + voice(1) + silence(1))
    await talk.until("response.output_text.delta")
    talk.hear(voice(1) + silence(1))
    events = await talk.until("error")
    assert kinds(events)[:3] == [
        f"input_audio_buffer.{name}" for name in ("speech_started", "speech_stopped", "committed")
    ]
    assert refusal(events[-1]) == (None, "conversation_already_has_active_response")
    go_on.set()
    assert (await talk.until("response.done"))[-1]["response"]["status"] == "completed"


async def test_an_interruption_tells_what_has_been_heard(talk: Talk, model: Talking) -> None:
    model.speak_aloud()
    pieces = [[Delta(0, "One two. Three four.")], [sound(24_000, "One two. ")], [sound(24_000, "Three four.")]]
    model.scripts = [[*pieces, asyncio.Event()], spoken(Delta(0, "Yes."))]
    await talk.update(output_modalities=["audio"])
    talk.hear(silence(1) + voice(1) + silence(1))
    item_id = (await talk.until("response.output_audio.delta"))[-1]["item_id"]
    talk.hear(voice(1))
    await talk.until("response.done")
    talk.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=700)
    assert (await talk.receive())["type"] == "conversation.item.truncated"
    talk.hear(silence(1))
    await talk.until("response.done")
    assert model.messages()[1] == {"role": "assistant", "content": "One"}


async def test_turns_that_the_client_cuts(talk: Talk, model: Talking) -> None:
    await talk.update(turn_detection=None)
    talk.hear(silence(0.5))
    talk.send("input_audio_buffer.commit")
    first = await talk.until("conversation.item.done")
    talk.hear(voice(0.5))
    talk.send("input_audio_buffer.commit")
    second = await talk.until("conversation.item.done")
    assert second[0]["previous_item_id"] == first[0]["item_id"]
    talk.send("input_audio_buffer.commit")  # twice: there is nothing more
    assert await talk.refused() == (None, "input_audio_buffer_commit_empty")
    talk.hear(voice(0.5))
    talk.send("input_audio_buffer.clear")
    assert (await talk.receive())["type"] == "input_audio_buffer.cleared"
    talk.send("input_audio_buffer.commit")
    assert await talk.refused() == (None, "input_audio_buffer_commit_empty")
    assert model.submitted == [], "nobody has asked for an answer"
    await talk.answer()
    assert [heard_by(message) for message in model.messages()] == [silence(0.5), voice(0.5)]


async def test_the_buffer_is_bounded(served: Served) -> None:
    served.settings.speech.realtime_max_audio_s = 1.0
    async with talking(served) as talk:
        await talk.update(turn_detection=None)
        talk.hear(voice(1) + voice(0.1))
        assert await talk.refused() == ("audio", "input_audio_buffer_full")
        talk.send("input_audio_buffer.commit")
        assert (await talk.receive())["type"] == "input_audio_buffer.committed"


async def test_sound_that_is_not_answered_pushes_out_the_oldest(served: Served) -> None:
    served.settings.speech.realtime_max_conversation_bytes = 200_000
    async with talking(served) as talk:
        await talk.update(turn_detection=None)
        deleted = 0
        for _ in range(6):
            talk.hear(voice(1))
            talk.send("input_audio_buffer.commit")
            deleted += kinds(await talk.until("conversation.item.done")).count("conversation.item.deleted")
        assert deleted == 3


async def test_a_long_piece_of_sound_holds_up_nobody(talk: Talk) -> None:
    audio = base64.b64encode(voice(20)).decode()
    talk.send("input_audio_buffer.append", audio=audio)
    ticks = 0
    await talk.until("input_audio_buffer.speech_started")
    talk.send("input_audio_buffer.clear")
    waiting = asyncio.create_task(talk.until("input_audio_buffer.cleared"))
    while not waiting.done():
        await asyncio.sleep(0)
        ticks += 1
    assert ticks > 20, "the loop has had no turn for a second of sound and more"


# ------------------------------------------------------------------------------------------------- written down

TRANSCRIPT: list[Step] = [[Delta(0, "Good ")], [Delta(0, "morning.")], [Usage(3, 2), Done()]]


async def test_what_is_said_is_written_down(talk: Talk, model: Talking) -> None:
    model.tasks = ["chat", "transcription"]
    model.scripts = [TRANSCRIPT, words("Hi.")]
    await talk.update(turn_detection=None, input_audio_transcription={"model": "whisper-1", "language": "en"})
    talk.hear(voice(0.5))
    talk.send("input_audio_buffer.commit")
    events = await talk.until("conversation.item.input_audio_transcription.completed")
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["Good ", "morning."]
    completed = events[-1]
    assert (completed["transcript"], completed["content_index"]) == ("Good morning.", 0)
    assert completed["usage"]["total_tokens"] == 5
    kind, _, body, _ = model.submitted[0]
    assert kind == "transcription"
    task: ListeningTask = decode_task(body)
    assert (task.fields, task.stream, task.file[54:]) == ({"language": "en"}, True, voice(0.5))
    talk.send("conversation.item.retrieve", item_id=completed["item_id"])
    assert (await talk.receive())["item"]["content"][0]["transcript"] == "Good morning."


async def test_what_cannot_be_written_down(talk: Talk, model: Talking) -> None:
    model.tasks = ["chat", "transcription"]
    model.scripts = [[ApiError(503, "the replica is lost", code="replica_lost")]]
    await talk.update(turn_detection=None, audio={"input": {"transcription": {}}})
    talk.hear(voice(0.5))
    talk.send("input_audio_buffer.commit")
    failed = (await talk.until("conversation.item.input_audio_transcription.failed"))[-1]
    assert failed["error"]["code"] == "replica_lost"
