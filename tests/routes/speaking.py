"""A scripted model that speaks, for tests of the routes that ask it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from app.cluster.messages import Audio, Done, Usage
from app.protocol.speechtask import SpeechCard, SpeechTask, decode_task
from tests.routes.serving import ScriptedOrchestrator, Served, Step

CARD = SpeechCard(family="scripted", voices=["heart", "stone"], default_voice="heart", sample_rate=24_000)
DETAILS = msgspec.json.encode({"prompt_tokens_details": {"text_tokens": 2, "audio_tokens": 1}})


def sound(data: bytes, *, text: str = "", base64_: bool = False) -> Audio:
    data = base64.b64encode(data) if base64_ else data
    return Audio(0, memoryview(data), "mp3", 24_000, 4800, text)


def speech(*pieces: bytes, base64_: bool = False) -> list[Step]:
    """The script of an answer in these pieces."""
    return [*([sound(piece, base64_=base64_)] for piece in pieces), [Usage(3, 8, DETAILS), Done()]]


SPEECH = speech(b"one", b"two", b"", b"three")
EVENTS = speech(b"one", b"two", b"", b"three", base64_=True)


def speaking(script: list[Step] | None = None, directory: Path = Path("/nowhere"), **server: Any) -> Served:
    """Routes over a model that only speaks."""
    orchestrator = ScriptedOrchestrator(SPEECH if script is None else script)
    orchestrator.tasks = ["speech"]
    orchestrator.card = msgspec.json.encode(CARD).decode()
    return Served(orchestrator, directory, **server)


def asked(served: Served) -> SpeechTask:
    """The task of the last request that reached the model."""
    return decode_task(served.orchestrator.submitted[-1][2])
