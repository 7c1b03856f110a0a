"""The stub's speech: known samples in the order of the words, in pieces or as one file."""

from __future__ import annotations

import asyncio
import base64
import wave
from array import array
from io import BytesIO
from typing import Any

import msgspec
import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.stub import StubEngine
from app.engines.stubspeech import RATE
from app.protocol.speechtask import SpeechTask, VoiceSample, encode_task
from tests.clusters import settings

FRAME = RATE // 5


class Asked:
    """A request that keeps its events, and the text that is appended to it."""

    def __init__(self, task: SpeechTask, *appended: bytes) -> None:
        self.request_id, self.kind, self.model, self.body = "r", "speech", "", encode_task(task)
        self.events: list[m.AnyEvent] = []
        self.heard = asyncio.Event()
        self.inputs: asyncio.Queue[bytes | None] = asyncio.Queue()
        for piece in appended:
            self.inputs.put_nowait(piece)

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)
        if isinstance(event, m.Audio):
            self.heard.set()

    async def ready(self) -> None:
        """Never short of credit."""

    async def next_input(self) -> bytes | None:
        return await self.inputs.get()

    @property
    def pieces(self) -> list[m.Audio]:
        return [event for event in self.events if isinstance(event, m.Audio)]


def engine() -> StubEngine:
    return StubEngine(settings(speaks=True).stages[0])


async def spoken(*appended: bytes, **task: Any) -> Asked:
    asked = Asked(SpeechTask(**task), *appended)
    await engine().run(asked)
    return asked


def ramp(pcm: bytes) -> bool:
    """Whether these are the first samples that the stub says, all of them and once each."""
    return array("h", pcm).tolist() == [position % 32768 for position in range(len(pcm) // 2)]


async def test_a_stream_of_frames() -> None:
    asked = await spoken(text="one two three four five", format="pcm", streamed=True)
    assert isinstance(asked.events[0], m.Accepted)
    assert [(piece.transcript, piece.samples) for piece in asked.pieces] == [
        ("one two ", FRAME),
        ("three four ", FRAME),
        ("five ", FRAME),
    ]
    assert ramp(b"".join(piece.data for piece in asked.pieces))
    usage = asked.events[-2]
    assert isinstance(usage, m.Usage)
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 12)
    assert msgspec.json.decode(usage.details)["completion_tokens_details"] == {"text_tokens": 0, "audio_tokens": 12}
    assert asked.events[-1] == m.Done()


async def test_a_whole_file() -> None:
    [piece] = (await spoken(text="one two three", format="wav", base64=True)).pieces
    with wave.open(BytesIO(base64.b64decode(piece.data))) as file:
        assert (file.getframerate(), file.getnframes()) == (RATE, 2 * FRAME)
        assert ramp(file.readframes(file.getnframes()))
    assert (piece.samples, piece.transcript) == (2 * FRAME, "one two three ")


async def test_a_streamed_file_has_one_header() -> None:
    pieces = (await spoken(format="wav", streamed=True, extra={"stub": {"tokens": 12}})).pieces
    joined = b"".join(piece.data for piece in pieces)
    assert joined[:4] == b"RIFF"
    assert ramp(joined[44:])
    assert len(pieces) == 12


async def test_rate_and_speed_change_how_many_samples_there_are() -> None:
    [slow] = (await spoken(text="one two", format="pcm", sample_rate=8000, speed=0.5)).pieces
    assert (slow.sample_rate, slow.samples) == (8000, 3200)


async def test_appended_text_is_said_as_it_comes() -> None:
    asked = Asked(SpeechTask(text="one t", appended=True, format="pcm", streamed=True), b"wo thr", b"ee")
    running = asyncio.create_task(engine().run(asked))
    await asyncio.wait_for(asked.heard.wait(), 5)
    assert [piece.transcript for piece in asked.pieces] == ["one two "]
    asked.inputs.put_nowait(None)
    await running
    assert [piece.transcript for piece in asked.pieces] == ["one two ", "three "]


@pytest.mark.parametrize(("field", "task"), [("voice", {"voice": "nobody"}), ("response_format", {"format": "mp3"})])
async def test_what_it_does_not_have_is_refused(field: str, task: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as error:
        await spoken(**({"format": "pcm"} | task))
    assert (error.value.failed.status, error.value.failed.param) == (400, field)


async def test_a_sample_is_a_voice() -> None:
    asked = await spoken(text="a", format="pcm", voice="somebody", sample=VoiceSample(data=b"x"))
    assert asked.events[-1] == m.Done()


async def test_it_breaks_on_request() -> None:
    with pytest.raises(RuntimeError, match="asked to fail"):
        await spoken(format="pcm", extra={"stub": {"tokens": 5, "fail_after": 2}})
