"""Chats that speak, on stub stages: what comes in which order, and every way in which one of two stages fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.engines.stubspeech import ramp
from app.pipeline.connection import Connection
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.request import CREDIT_WINDOW
from app.pipeline.spoken import SpokenStream
from app.protocol.errors import ApiError
from tests.clusters import body, cluster, eventually, held_refs, text_of
from tests.clusters import read as read_text
from tests.pipeline.speaking import SAMPLES, kept, read, sound_of, speaking, spoken, spoken_words

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = "one two three four five"
FRAMES = 3
"""That many say five words."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Orchestrator]:
    """Two stages; what a speech stage makes leaves it as refs."""
    config = speaking({"token_s": 0.02}, input_timeout_s=1.0, shm_threshold_bytes=1024)
    async with cluster(tmp_path_factory.mktemp("s"), config) as (orchestrator, _):
        yield orchestrator


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_is_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """After each test no task of its own runs, and the stages of the module have nothing to do and hold nothing."""
    before = asyncio.all_tasks()
    yield
    await eventually(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()}, 5)
    if "stages" in request.fixturenames:
        await eventually(lambda: idle(request.getfixturevalue("stages")), 5)


def replicas(orchestrator: Orchestrator, stage: int) -> list[Connection]:
    return orchestrator._graph.pools[stage].connections


def idle(orchestrator: Orchestrator) -> bool:
    """Nothing is in flight, as this worker and as the replicas see it; no ref is held."""
    connections = [*replicas(orchestrator, 0), *replicas(orchestrator, 1)]
    loads = [connection.info.load for connection in connections]
    return not any(
        connection.in_flight or load.running or load.waiting or held_refs(connection.info.pid)
        for connection, load in zip(connections, loads, strict=True)
    )


def chat(words: str = WORDS, **script: Any) -> bytes:
    return body(words, **script)


async def say(orchestrator: Orchestrator, text: bytes, speech: bytes, **options: Any) -> SpokenStream:
    return await orchestrator.speak("r1", text, speech, streamed=True, **options)


async def failure(stream: SpokenStream) -> tuple[ApiError, list[m.AnyEvent]]:
    """How it fails, and what came before."""
    events: list[m.AnyEvent] = []
    try:
        with pytest.raises(ApiError) as caught:  # noqa: PT012 - what came before the error matters
            async for batch in stream:
                events += kept(batch)
    finally:
        await stream.aclose("failed")
    return caught.value, events


# ------------------------------------------------------------------------------------------------ what comes


async def test_text_and_sound_come_as_they_are_made(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(), spoken()))
    assert text_of(events) == spoken_words(events) == f"{WORDS} "
    assert sound_of(events) == ramp(0, FRAMES * SAMPLES)
    kinds = [type(event) for event in events]
    assert kinds.index(m.Audio) < len(kinds) - 1 - kinds[::-1].index(m.Delta), "the sound waited for the text"
    assert kinds[-2:] == [m.Finish, m.Done]
    assert kinds.count(m.Finish) == kinds.count(m.Done) == 1


async def test_usage_counts_both(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(), spoken()))
    usage = [event for event in events if isinstance(event, m.Usage)][-1]
    made = {"text_tokens": 5, "audio_tokens": 4 * FRAMES}
    assert usage.completion_tokens == sum(made.values())
    assert json.loads(usage.details)["completion_tokens_details"] == made


@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_every_word_is_said_once_streamed_or_not(stages: Orchestrator, count: int) -> None:
    """Around the border of a piece, which is two words: nothing is lost, doubled or out of order."""
    expected = ramp(0, (count + 1) // 2 * SAMPLES)
    for streamed in (True, False):
        events = await read(await say(stages, chat(tokens=count, token_s=0), spoken(streamed)))
        assert sound_of(events) == expected
        assert spoken_words(events) == text_of(events)
        assert streamed or sum(isinstance(event, m.Audio) for event in events) == 1


async def test_an_answer_without_text_has_no_sound(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(tokens=0), spoken()))
    assert sound_of(events) == b""
    assert [type(event) for event in events[-2:]] == [m.Finish, m.Done]


async def test_an_edge_that_is_whole(tmp_path: Path) -> None:
    config = speaking({"token_s": 0.02}, async_chunk=False)
    async with cluster(tmp_path, config) as (orchestrator, _):
        events = await read(await say(orchestrator, chat(), spoken()))
        kinds = [type(event) for event in events]
        assert kinds.index(m.Audio) > len(kinds) - 1 - kinds[::-1].index(m.Delta)
        assert sound_of(events) == ramp(0, FRAMES * SAMPLES)


async def test_text_alone_touches_no_other_stage(stages: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the pings of the worker goes to the stage that speaks."""
    (speech,) = replicas(stages, 1)
    sent: list[bytes] = []
    channel = speech._channel
    send = channel.send
    monkeypatch.setattr(channel, "send", lambda frames: (sent.append(bytes(frames[0])), send(frames)))
    stream = await stages.submit("chat", "r1", chat())
    assert text_of(await read_text(stream)) == f"{WORDS} "
    assert [message for message in map(m.decode_data, sent) if not isinstance(message, m.Ping)] == []
    await read(await say(stages, chat(), spoken()))
    assert {type(message) for message in map(m.decode_data, sent)} >= {m.Submit, m.Append, m.Release}


# ------------------------------------------------------------------------------------------------ refusals


async def test_what_one_stage_refuses_the_other_does_not_begin(stages: Orchestrator) -> None:
    with pytest.raises(ApiError) as caught:
        await say(stages, chat(), spoken(voice="nobody"))
    assert (caught.value.status, caught.value.body.error.param) == (400, "audio.voice")
    with pytest.raises(ApiError) as caught:
        await say(stages, chat(refuse="not this"), spoken())
    assert (caught.value.status, str(caught.value)) == (400, "not this")
    await eventually(lambda: idle(stages), 5)


async def test_a_stage_that_is_down_is_missed_only_by_who_needs_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, speaking(speech={"load_s": 0.5})) as (orchestrator, _):
        os.kill(replicas(orchestrator, 1)[0].info.pid, signal.SIGKILL)
        await eventually(lambda: not orchestrator.ready)
        with pytest.raises(ApiError) as caught:
            await say(orchestrator, chat(), spoken())
        assert (caught.value.status, caught.value.body.error.code) == (503, "no_replica")
        assert "speech" in str(caught.value)
        assert text_of(await read_text(await orchestrator.submit("chat", "r2", chat()))) == f"{WORDS} "
        assert await orchestrator.wait_ready(20)
        assert sound_of(await read(await say(orchestrator, chat(), spoken())))


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("after", [0, 2, 5])
async def test_the_text_fails(stages: Orchestrator, after: int) -> None:
    error, events = await failure(await say(stages, chat(fail_after=after), spoken()))
    assert error.status == 500
    assert text_of(events).split() == WORDS.split()[:after]
    assert m.Done() not in events


@pytest.mark.parametrize("after", [0, 1, FRAMES])
async def test_the_speech_fails(stages: Orchestrator, after: int) -> None:
    error, events = await failure(await say(stages, chat(), spoken(fail_after=after)))
    assert error.status == 500
    assert sound_of(events) == ramp(0, after * SAMPLES)
    assert not any(isinstance(event, m.Finish) for event in events)


@pytest.mark.parametrize("after", [1, FRAMES])
async def test_the_speech_falls_silent(stages: Orchestrator, after: int) -> None:
    begun = asyncio.get_running_loop().time()
    error, events = await failure(await say(stages, chat(token_s=0), spoken(hang_after=after)))
    assert (error.status, error.body.error.code) == (504, m.INPUT_TIMEOUT)
    assert "speech" in str(error)
    assert text_of(events) == f"{WORDS} ", "text is not held back"
    assert asyncio.get_running_loop().time() - begun >= 1.0


@pytest.mark.parametrize("after", [0, 3])
async def test_the_text_falls_silent(stages: Orchestrator, after: int) -> None:
    error, events = await failure(await say(stages, chat(hang_after=after), spoken()))
    assert (error.status, error.body.error.code) == (504, m.INPUT_TIMEOUT)
    assert "text" in str(error)
    assert text_of(events).split() == WORDS.split()[:after]


async def test_a_stage_that_is_slow_is_waited_for(stages: Orchestrator) -> None:
    """The limit of a second is one of silence, not of the whole."""
    events = await read(await say(stages, chat(token_s=0), spoken(token_s=0.4)))
    assert sound_of(events) == ramp(0, FRAMES * SAMPLES)


async def test_a_speech_that_ends_before_its_text_is_no_answer(stages: Orchestrator) -> None:
    error, _ = await failure(await say(stages, chat(tokens=50), spoken(tokens=1)))
    assert (error.status, error.body.error.code) == (500, "stage_failed")


async def test_the_deadline_of_the_request_holds_for_both(stages: Orchestrator) -> None:
    error, _ = await failure(await say(stages, chat(tokens=1000), spoken(), limit_s=0.4))
    assert (error.status, error.body.error.code) == (504, "deadline_exceeded")


@pytest.mark.parametrize(("text", "speech"), [({"exit_after": 2}, {}), ({}, {"exit_after": 1})])
async def test_a_stage_that_dies_fails_that_request_only(
    tmp_path: Path, text: dict[str, Any], speech: dict[str, Any]
) -> None:
    config = speaking({"token_s": 0.05})
    for one in config.stages:
        one.num_replicas = 2
    async with cluster(tmp_path, config) as (orchestrator, _):
        doomed = await say(orchestrator, chat(**text), spoken(**speech))
        other = await orchestrator.speak("r2", chat(), spoken(), streamed=True)
        (error, _), events = await asyncio.gather(failure(doomed), read(other))
        assert (error.status, error.body.error.code) == (503, "replica_lost")
        assert sound_of(events) == ramp(0, FRAMES * SAMPLES)
        assert await orchestrator.wait_ready(20)
        await eventually(lambda: idle(orchestrator), 5)


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_stage_that_dies_unheard_is_asked_once_more(tmp_path: Path, stage: int) -> None:
    config = speaking({"token_s": 0.5})
    config.stages[stage].num_replicas = 2
    async with cluster(tmp_path, config) as (orchestrator, _):
        stream = await say(orchestrator, chat("one two"), spoken())
        victim = next(connection for connection in replicas(orchestrator, stage) if connection.in_flight)
        os.kill(victim.info.pid, signal.SIGKILL)
        events = await read(stream)
        assert text_of(events) == spoken_words(events) == "one two "
        assert sound_of(events) == ramp(0, SAMPLES)


# ------------------------------------------------------------------------------------------------ clients


@pytest.mark.parametrize("batches", [0, 1, 4, 100])
async def test_a_client_that_leaves(stages: Orchestrator, batches: int) -> None:
    stream = await say(stages, chat(), spoken())
    async for _ in stream:
        batches -= 1
        if batches < 0:
            break
    await stream.aclose()
    await stream.aclose()


async def test_a_reader_that_is_cancelled(stages: Orchestrator) -> None:
    stream = await say(stages, chat(tokens=1000), spoken())
    reader = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    reader.cancel()
    await asyncio.wait({reader})
    assert reader.cancelled()


async def test_a_start_that_is_cancelled(stages: Orchestrator) -> None:
    for _ in range(3):
        start = asyncio.create_task(say(stages, chat(tokens=1000), spoken()))
        await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait({start})


async def test_a_client_that_reads_slowly_is_not_sent_more_than_its_window(tmp_path: Path) -> None:
    async with cluster(tmp_path, speaking()) as (orchestrator, _):
        stream = await say(orchestrator, chat(tokens=600), spoken())
        events = await anext(stream)
        while not any(isinstance(event, m.Audio) for event in events):
            events += await anext(stream)
        await asyncio.sleep(1)
        inner = stream._speech.stream._stream
        assert inner is not None
        assert sum(map(m.cost, inner._events)) <= CREDIT_WINDOW + 2 * SAMPLES
        events += await read(stream)
        assert sound_of(events) == b"".join(ramp(frame * SAMPLES, SAMPLES) for frame in range(300))
