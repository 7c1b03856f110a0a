"""Pipelines of stub stages: one answers chats, one speaks what that one says; or thinker, talker and vocoder."""

from __future__ import annotations

from typing import Any

from app.cluster import messages as m
from app.pipeline.speaking import Spoken
from app.protocol.speechtask import SpeechTask, encode_task
from app.settings.schema import Settings, StageConfig
from tests.clusters import settings

SAMPLES = 4800
"""Of a frame: two words."""


def stage(stage_id: int, name: str, sources: tuple[int, ...] = (), **fields: Any) -> StageConfig:
    """A stub stage; engine_args and the fields of an edge in `fields`."""
    return StageConfig(
        stage_id=stage_id, name=name, kind="stub", model="stub", devices="cpu", sources=list(sources), **fields
    )


def speaking(text: dict[str, Any] | None = None, speech: dict[str, Any] | None = None, **edge: Any) -> Settings:
    """A stage "text" that feeds a stage "speech"; their engine_args, and how the edge is."""
    config = settings()
    config.stages = [
        stage(0, "text", engine_args=text or {}),
        stage(
            1, "speech", (0,), outputs=["audio"], engine_args={"chats": False, "speaks": True, **(speech or {})}, **edge
        ),
    ]
    return config


def omni(
    thinker: dict[str, Any] | None = None, *, replicas: int = 1, voice: dict[str, Any] | None = None, **edges: Any
) -> Settings:
    """Stages "thinker", "talker" and "code2wav", each of which feeds the next; `edges`: how both edges are."""
    config = settings()
    config.stages = [
        stage(0, "thinker", engine_args={"produces": True, **(thinker or {})}),
        stage(1, "talker", (0,), entry=False, outputs=[], engine_args={"chats": False, "talks": True}, **edges),
        stage(
            2,
            "code2wav",
            (1,),
            entry=False,
            outputs=["audio"],
            engine_args={"chats": False, "vocodes": True, **(voice or {})},
            **edges,
        ),
    ]
    for one in config.stages:
        one.num_replicas = replicas
        one.shm_threshold_bytes = 1024
    return config


def heard(streamed: bool = True, voice: str = "", vocoder: dict[str, Any] | None = None, **talker: Any) -> bytes:
    """The task of the two stages behind a thinker; the scripts are what the stubs do in it."""
    extra = {"stub": talker, "vocoder": vocoder or {}}
    return encode_task(SpeechTask(appended=True, format="pcm", voice=voice, streamed=streamed, extra=extra))


def spoken(streamed: bool = True, voice: str = "", **script: Any) -> bytes:
    """The task of the speech stage; `script` is what the stub does in it."""
    extra = {"stub": script} if script else {}
    return encode_task(SpeechTask(appended=True, format="pcm", voice=voice, streamed=streamed, extra=extra))


async def read(stream: Spoken) -> list[m.AnyEvent]:
    """All events; the stream is closed at the end."""
    try:
        return [event async for batch in stream for event in kept(batch)]
    finally:
        await stream.aclose()


def kept(batch: list[m.AnyEvent]) -> list[m.AnyEvent]:
    """The events, which are still there when their stream is closed."""
    for event in batch:
        if isinstance(event, m.Audio):
            event.data = memoryview(bytes(event.data))
    return batch


def sound_of(events: list[m.AnyEvent]) -> bytes:
    return b"".join(bytes(event.data) for event in events if isinstance(event, m.Audio))


def spoken_words(events: list[m.AnyEvent]) -> str:
    return "".join(event.transcript for event in events if isinstance(event, m.Audio))
