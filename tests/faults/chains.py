"""The ways in which a chat ends that thinker, talker and vocoder answer together, on stub stages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.cluster import messages as m
from app.engines.stubspeech import ramp
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.speaking import Spoken
from app.protocol.errors import ApiError
from tests.clusters import body, cluster, eventually, text_of
from tests.faults.edges import AT_A_TIME, nothing_left, open_files
from tests.pipeline.speaking import SAMPLES, heard, kept, omni, read, sound_of

WORDS = "one two three four five"
FRAMES = 5
"""One for each word."""
TIMEOUT_S = 1.0
ROWS = {"rows": 2, "width": 1000}
"""4000 bytes of a frame: it travels by ref here."""
REPLICAS = 2
"""Of each stage, so that a request with a fault has none in common with one that began before."""
LEAVERS = 500


def chat(words: str = WORDS, **script: Any) -> bytes:
    """The thinker's part; `script` is what the stub does in it."""
    return json.dumps({**json.loads(body(words, **script)), "tensors": ROWS}).encode()


class End(msgspec.Struct, frozen=True):
    """What the stages do, and the status, code and words of what the client is told."""

    text: bytes
    speech: bytes
    status: int
    code: str | None
    words: str


def _silent(text: bytes, speech: bytes, words: str) -> End:
    return End(text, speech, 504, m.INPUT_TIMEOUT, words)


def _dead(text: bytes, speech: bytes) -> End:
    return End(text, speech, 503, m.REPLICA_LOST, "was lost")


ENDS = {
    "thinker fails": End(chat(fail_after=3), heard(), 500, None, "RuntimeError"),
    "talker fails": End(chat(), heard(fail_after=2), 500, None, "RuntimeError"),
    "code2wav fails": End(chat(), heard(vocoder={"fail_after": 1}), 500, None, "RuntimeError"),
    "thinker is silent": _silent(chat(hang_after=3), heard(), "stage talker got nothing from stage thinker"),
    "talker is silent": _silent(chat(), heard(hang_after=2), "stage talker"),
    "code2wav is silent": _silent(chat(), heard(vocoder={"hang_after": 1}), "code2wav made nothing of what stage talk"),
    "thinker is late": _silent(chat(token_s=3 * TIMEOUT_S), heard(), "stage talker got nothing from stage thinker"),
    "code2wav stops too early": End(
        chat(), heard(vocoder={"tokens": 1}), 500, "stage_failed", "the sound ended before what it is made of"
    ),
}
DEATHS = {
    "thinker dies": _dead(chat(exit_after=3), heard()),
    "talker dies": _dead(chat(), heard(exit_after=2)),
    "code2wav dies": _dead(chat(), heard(vocoder={"exit_after": 1})),
}


async def all_up(orchestrator: Orchestrator) -> None:
    """Wait until all replicas are up and hold and do nothing."""

    def up() -> int:
        return sum(len(stage.replicas) for stage in orchestrator.status())

    await eventually(lambda: orchestrator.ready and up() == 3 * REPLICAS and nothing_left(orchestrator), 20)


async def meet(orchestrator: Orchestrator, end: End, request_id: str = "r") -> list[m.AnyEvent]:
    """One request that ends so; what came before it failed."""
    stream = await orchestrator.speak(request_id, end.text, end.speech, streamed=True)
    error, events = await failure(stream)
    assert (error.status, error.body.error.code) == (end.status, end.code)
    assert end.words in str(error)
    assert not any(isinstance(event, m.Finish | m.Done) for event in events)
    return events


async def failure(stream: Spoken) -> tuple[ApiError, list[m.AnyEvent]]:
    """How it fails, and what came before."""
    events: list[m.AnyEvent] = []
    try:
        with pytest.raises(ApiError) as caught:  # noqa: PT012 - what came before the error matters
            async for batch in stream:
                events += kept(batch)
    finally:
        await stream.aclose("failed")
    return caught.value, events


async def complete(orchestrator: Orchestrator, request_id: str = "w", **script: Any) -> None:
    """One request that all three answer to its end."""
    events = await read(await orchestrator.speak(request_id, chat(**script), heard(), streamed=True))
    assert (text_of(events), sound_of(events)) == (f"{WORDS} ", ramp(0, FRAMES * SAMPLES))


async def leave(orchestrator: Orchestrator, request_id: str, batches: int = 3) -> None:
    """A client that leaves in the middle."""
    stream = await orchestrator.speak(request_id, chat(tokens=1000, token_s=0.01), heard(), streamed=True)
    async for _ in stream:
        batches -= 1
        if batches < 0:
            break
    await stream.aclose()


async def every_end(path: Path, count: int) -> None:
    """Each end `count` times and LEAVERS clients that leave, a few at a time; then the deaths. Nothing is left."""
    async with cluster(path, omni({"token_s": 0.02}, replicas=REPLICAS, input_timeout_s=TIMEOUT_S)) as (stages, _):
        await all_up(stages)
        await complete(stages)
        await leave(stages, "first")
        await all_up(stages)
        before = open_files(stages)
        for number in range(count):
            await asyncio.gather(*(meet(stages, end, f"{name} {number}") for name, end in ENDS.items()))
            await complete(stages)
        for start in range(0, LEAVERS, AT_A_TIME):
            await asyncio.gather(*(leave(stages, f"l{number}") for number in range(start, start + AT_A_TIME)))
        await all_up(stages)
        await eventually(lambda: all(number <= before[pid] for pid, number in open_files(stages).items()))
        for end in DEATHS.values():
            await meet(stages, end)
            await all_up(stages)
        await complete(stages)
