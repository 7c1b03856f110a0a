"""The `openai` package as the judge of /v1/realtime: its client, its types, and what a user of both would do."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from app.engines.stubspeech import ramp
from tests.hearing import transcribe
from tests.routes.realtime import silence, voice
from tests.servers import ROOT, Server

LIMIT_S = 60.0
FRAME = 4800
"""Samples for two words."""
_judge = TypeAdapter[Any](RealtimeServerEvent)


class Talk:
    """A connection whose events OpenAI's own types have found nothing wrong with."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection

    async def receive(self) -> Any:
        async with asyncio.timeout(LIMIT_S):
            raw = await self.connection.recv_bytes()
        _judge.validate_json(raw)
        return self.connection.parse_event(raw)

    async def until(self, kind: str) -> list[Any]:
        found = [await self.receive()]
        while found[-1].type != kind:
            assert found[-1].type != "error", found[-1]
            found.append(await self.receive())
        return found

    async def say(self, text: str) -> None:
        content: Any = [{"type": "input_text", "text": text}]
        await self.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await self.until("conversation.item.done")


@asynccontextmanager
async def talking(server: Server, model: str) -> AsyncIterator[Talk]:
    async with (
        openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client,
        client.realtime.connect(model=model) as connection,
    ):
        talk = Talk(connection)
        [created] = await talk.until("session.created")
        assert created.session.model == model
        yield talk


async def test_text_in_sound_out(speaking_chats: Server) -> None:
    async with talking(speaking_chats, "stub") as talk:
        await talk.connection.session.update(
            session={"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"voice": "stone"}}}
        )
        [updated] = await talk.until("session.updated")
        assert (updated.session.instructions, updated.session.audio.output.voice) == ("Be brief.", "stone")
        await talk.say("one two three four")
        await talk.connection.response.create()
        events = await talk.until("response.done")
        sound = b"".join(
            base64.b64decode(event.delta) for event in events if event.type == "response.output_audio.delta"
        )
        assert sound == ramp(0, 2 * FRAME)
        response = events[-1].response
        assert response.status == "completed"
        [item] = response.output
        assert item.content[0].transcript == "one two three four "
        assert response.usage.output_token_details.audio_tokens == 8

        await talk.connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=200)
        await talk.until("conversation.item.truncated")
        await talk.connection.conversation.item.retrieve(item_id=item.id)
        [retrieved] = await talk.until("conversation.item.retrieved")
        assert retrieved.item.content[0].transcript.strip() == "one two"


async def test_sound_in_text_out(speaking_chats: Server) -> None:
    async with talking(speaking_chats, "stub") as talk:
        await talk.connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        await talk.until("session.updated")
        samples = silence(0.5) + voice(0.5) + silence(1)
        for begin in range(0, len(samples), 4800):
            audio = base64.b64encode(samples[begin : begin + 4800]).decode()
            await talk.connection.input_audio_buffer.append(audio=audio)
        events = await talk.until("response.done")
        assert [event.type for event in events[:5]] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
        ]
        assert events[-1].response.output[0].content[0].text == "input_audio "


async def test_mistakes_keep_the_socket(speaking_chats: Server) -> None:
    async with talking(speaking_chats, "stub") as talk:
        await talk.connection.response.create(event_id="e1", response={"audio": {"output": {"voice": "nobody"}}})
        error = await talk.receive()
        assert (error.error.code, error.error.event_id) == ("conversation_empty", "e1")
        await talk.say("one")
        await talk.connection.response.create(event_id="e2", response={"audio": {"output": {"voice": "nobody"}}})
        error = await talk.receive()
        assert (error.error.param, error.error.event_id) == ("audio.output.voice", "e2")
        await talk.connection.response.create(response={"output_modalities": ["text"], "metadata": {"mine": "1"}})
        done = (await talk.until("response.done"))[-1].response
        assert (done.status, done.metadata) == ("completed", {"mine": "1"})


# -------------------------------------------------------------------------------------------------------- the demo


async def test_the_demo_answers_aloud_and_is_interrupted(demo: Server) -> None:
    async with talking(demo, "demo") as talk:
        await talk.say("Repeat this sentence, word for word: The museum is closed on Monday.")
        await talk.connection.response.create(response={"max_output_tokens": 40, "temperature": 0})  # type: ignore[typeddict-unknown-key]
        events = await talk.until("response.done")
        sound = b"".join(
            base64.b64decode(event.delta) for event in events if event.type == "response.output_audio.delta"
        )
        assert "museum" in events[-1].response.output[0].content[0].transcript.lower()
        assert "museum" in transcribe(pcm_as_floats(sound), 24_000).lower()

        await talk.say("Tell me a long story.")
        await talk.connection.response.create()
        item_id = (await talk.until("response.output_audio.delta"))[-1].item_id
        asked = asyncio.get_running_loop().time()
        await talk.connection.response.cancel()
        done = (await talk.until("response.done"))[-1].response
        assert asyncio.get_running_loop().time() - asked < 2
        assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")
        await talk.connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=300)
        await talk.until("conversation.item.truncated")


def pcm_as_floats(samples: bytes) -> Any:
    import numpy as np

    return np.frombuffer(samples, "<i2").astype("float32") / 32768


async def test_the_example_of_the_documentation(demo: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "realtime.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    code = compile(example.replace("http://127.0.0.1:8091", demo.url), "realtime.md", "exec")
    await asyncio.to_thread(exec, code, {})
    assert transcribe((tmp_path / "answer.wav").read_bytes())
