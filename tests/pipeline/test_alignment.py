"""Words that are timed, on stub stages: what is told, and every way in which it fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.pipeline.orchestrator import Orchestrator
from app.protocol.aligning import AlignTask, decode_alignment
from app.protocol.errors import ApiError
from app.protocol.speechtask import SpeechTask, encode_task
from app.settings.schema import Settings
from tests.clusters import cluster, eventually, settings
from tests.pipeline.speaking import kept, sound_of, stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "one two three four"


def aligning() -> Settings:
    """A stage that speaks, and one that times its words; no edge between them."""
    config = settings()
    config.stages = [
        stage(0, "speech", outputs=["audio"], engine_args={"chats": False, "speaks": True}),
        stage(1, "aligner", entry=False, outputs=[], engine_args={"chats": False, "aligns": True}),
    ]
    config.stages[1].model_stage = "aligner"
    return config


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Orchestrator]:
    async with cluster(tmp_path_factory.mktemp("x"), aligning()) as (orchestrator, _):
        yield orchestrator


def spoken(**script: Any) -> bytes:
    return encode_task(SpeechTask(text=TEXT, format="wav", extra={"stub": script} if script else {}))


def idle(orchestrator: Orchestrator) -> bool:
    connections = [connection for pool in orchestrator._graph.pools.values() for connection in pool.connections]
    return not any(x.in_flight or x.info.load.running or x.info.load.waiting for x in connections)


async def align(orchestrator: Orchestrator, body: bytes, script: dict[str, Any], **options: Any) -> list[m.AnyEvent]:
    """All events; `script` is what the aligner does."""

    def asked(events: list[m.AnyEvent]) -> AlignTask:
        assert not any(isinstance(event, m.Done) for event in events)
        return AlignTask(text=TEXT, file=sound_of(events), language=json.dumps(script))

    stream = await orchestrator.align("speech", uuid.uuid4().hex, body, asked, **options)
    try:
        return [event async for batch in stream for event in kept(batch)]
    finally:
        await stream.aclose()


async def refused(orchestrator: Orchestrator, body: bytes, script: dict[str, Any], **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await align(orchestrator, body, script, **options)
    await eventually(lambda: idle(orchestrator), 5)
    return caught.value


async def test_times_come_after_the_sound(stages: Orchestrator) -> None:
    assert stages.aligns
    *sound, times, done = await align(stages, spoken(), {})
    assert sound_of(sound).startswith(b"RIFF")
    assert any(isinstance(event, m.Usage) for event in sound)
    assert isinstance(times, m.Extra)
    assert [word.word for word in decode_alignment(times.fields).words] == TEXT.split()
    assert done == m.Done()
    await eventually(lambda: idle(stages), 5)


async def test_many_at_once_get_their_own(stages: Orchestrator) -> None:
    answers = await asyncio.gather(*(align(stages, spoken(tokens=n + 1), {}) for n in range(16)))
    sizes = [len(sound_of(events)) for events in answers]
    assert sizes == sorted(set(sizes))


async def test_what_either_refuses_is_the_answer(stages: Orchestrator) -> None:
    assert (await refused(stages, spoken(refuse="no voice"), {})).status == 400
    error = await refused(stages, spoken(), {"refuse": "no words"})
    assert (error.status, str(error)) == (400, "no words")
    assert (await refused(stages, spoken(fail_after=1), {})).status == 500
    assert (await refused(stages, spoken(), {"fail_after": 1})).status == 500


async def test_the_deadline_is_one_for_both(stages: Orchestrator) -> None:
    begun = asyncio.get_running_loop().time()
    error = await refused(stages, spoken(), {"token_s": 5}, limit_s=0.4)
    assert (error.status, error.body.error.code) == (504, "deadline_exceeded")
    assert asyncio.get_running_loop().time() - begun < 3


async def test_a_client_that_leaves_while_words_are_timed(stages: Orchestrator) -> None:
    waiting = asyncio.create_task(align(stages, spoken(), {"hang_after": 0}))
    aligner = stages._graph.pools[1].connections[0]
    await eventually(lambda: aligner.in_flight == 1, 5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await eventually(lambda: idle(stages), 5)


async def test_an_aligner_that_dies_and_one_that_is_away(tmp_path: Path) -> None:
    async with cluster(tmp_path, aligning()) as (orchestrator, _):
        timed = asyncio.create_task(align(orchestrator, spoken(), {"hang_after": 0}))
        aligner = orchestrator._graph.pools[1]
        await eventually(lambda: aligner.connections[0].in_flight == 1, 5)
        os.kill(aligner.connections[0].info.pid, signal.SIGKILL)
        with pytest.raises(ApiError) as caught:
            await timed
        assert caught.value.status == 503
        if not aligner.ready:
            with pytest.raises(ApiError, match="no replica of stage aligner is available"):
                await align(orchestrator, spoken(), {})
        with pytest.raises(ApiError) as unknown:
            await orchestrator.submit("align", "r2", msgspec.msgpack.encode({}))
        assert unknown.value.status in (404, 503), "it is no stage for clients"
