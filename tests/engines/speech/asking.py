"""A speech engine asked directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from app.cluster import messages as m
from app.engines.speech.engine import SpeechEngine
from app.protocol.speechtask import SpeechTask, encode_task
from app.settings.schema import StageConfig

TEXT = "The first sentence is short. Here comes a second one, which is longer. And a third!"


class Asked:
    """A request that keeps its events; `seen` is set at each of them. `append` gives it further text."""

    def __init__(self, task: SpeechTask) -> None:
        self.request_id, self.kind, self.model, self.body = "r", "speech", "", encode_task(task)
        self.events: list[m.AnyEvent] = []
        self.seen = asyncio.Event()
        self.funded = asyncio.Event()
        self.funded.set()
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue()

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)
        self.seen.set()

    async def ready(self) -> None:
        await self.funded.wait()

    def append(self, text: str | bytes | None) -> None:
        """None: there is no more."""
        self._inputs.put_nowait(text.encode() if isinstance(text, str) else text)

    @property
    def unread(self) -> int:
        """Appended texts that nobody has asked for yet."""
        return self._inputs.qsize()

    async def next_input(self) -> bytes | None:
        return await self._inputs.get()

    async def until(self, kind: type[m.Event], count: int = 1) -> None:
        """Wait for that many events of a kind."""
        while len(self.of(kind)) < count:
            self.seen.clear()
            await asyncio.wait_for(self.seen.wait(), 60)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def pieces(self) -> list[m.Audio]:
        return self.of(m.Audio)

    @property
    def file(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def samples(self) -> np.ndarray[Any, Any]:
        """Of a pcm file, as 16 bits."""
        return np.frombuffer(self.file, "<i2")

    @property
    def transcript(self) -> str:
        return "".join(piece.transcript for piece in self.pieces)

    @property
    def usage(self) -> m.Usage:
        return self.of(m.Usage)[0]


def task(text: str = TEXT, **fields: Any) -> SpeechTask:
    """One that is answered with bare samples; seed 7."""
    return SpeechTask(**{"text": text, "format": "pcm", "seed": 7} | fields)


def stage(model: str | Path = "demo", **engine_args: Any) -> StageConfig:
    """On the CPU; default_sampling_params and input_timeout_s are the stage's own, all else engine arguments."""
    own = {
        name: engine_args.pop(name) for name in ("default_sampling_params", "input_timeout_s") if name in engine_args
    }
    return StageConfig(
        stage_id=1, name="speech", kind="speech", model=str(model), devices="cpu", engine_args=engine_args, **own
    )


@asynccontextmanager
async def started(model: str | Path = "demo", **engine_args: Any) -> AsyncIterator[SpeechEngine]:
    engine = SpeechEngine(stage(model, **engine_args))
    engine.capabilities = await engine.start()  # type: ignore[attr-defined]
    try:
        yield engine
    finally:
        await engine.stop()


async def ask(engine: SpeechEngine, asked_task: SpeechTask) -> Asked:
    """The request, answered to its end."""
    asked = Asked(asked_task)
    await asyncio.wait_for(engine.run(asked), 120)
    return asked


def details(usage: m.Usage) -> Any:
    return msgspec.json.decode(usage.details)
