"""Chats that an omni model speaks itself, on stub stages: what comes in which order, and how each stage fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.engines.stubspeech import ramp
from app.pipeline.orchestrator import Orchestrator
from app.pipeline.speaking import Spoken
from app.protocol.errors import ApiError
from tests.clusters import cluster, eventually, text_of
from tests.clusters import read as read_text
from tests.faults import chains
from tests.faults.chains import DEATHS, ENDS, FRAMES, TIMEOUT_S, WORDS, chat
from tests.faults.edges import nothing_left
from tests.pipeline.speaking import SAMPLES, heard, omni, read, sound_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Orchestrator]:
    config = omni({"token_s": 0.02}, replicas=chains.REPLICAS, input_timeout_s=TIMEOUT_S)
    async with cluster(tmp_path_factory.mktemp("o"), config) as (orchestrator, _):
        yield orchestrator


@pytest_asyncio.fixture(loop_scope="module")
async def stages(running: Orchestrator) -> AsyncIterator[Orchestrator]:
    """All up; after the test nobody waits for them, and they have nothing to do and hold nothing."""
    await chains.all_up(running)
    yield running
    await eventually(lambda: nothing_left(running), 10)
    assert not [task for task in asyncio.all_tasks() if "RequestStream" in repr(task.get_coro())]


async def say(stages: Orchestrator, text: bytes, speech: bytes, **options: Any) -> Spoken:
    return await stages.speak("r1", text, speech, streamed=True, **options)


# ------------------------------------------------------------------------------------------------ what comes


async def test_text_and_sound_come_as_they_are_made(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(), heard()))
    assert text_of(events) == f"{WORDS} "
    assert sound_of(events) == ramp(0, FRAMES * SAMPLES)
    kinds = [type(event) for event in events]
    assert kinds.index(m.Audio) < len(kinds) - 1 - kinds[::-1].index(m.Delta), "the sound waited for the text"
    assert kinds[-2:] == [m.Finish, m.Done]
    assert kinds.count(m.Finish) == kinds.count(m.Done) == 1


async def test_usage_counts_text_and_sound(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(), heard(streamed=False)))
    usage = [event for event in events if isinstance(event, m.Usage)][-1]
    made = {"text_tokens": 5, "audio_tokens": 4 * FRAMES}
    assert usage.completion_tokens == sum(made.values())
    assert json.loads(usage.details)["completion_tokens_details"] == made


async def test_many_at_once_are_not_mixed_up(stages: Orchestrator) -> None:
    async def one(number: int) -> None:
        stream = await stages.speak(f"r{number}", chat(tokens=number), heard(), streamed=True)
        events = await read(stream)
        assert text_of(events) == "".join(f"w{word} " for word in range(number))
        assert sound_of(events) == ramp(0, number * SAMPLES)

    await asyncio.gather(*(one(number) for number in range(12)))


async def test_text_does_not_wait_for_slow_sound(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(token_s=0), heard(vocoder={"token_s": 0.3})))
    kinds = [type(event) for event in events]
    assert kinds.index(m.Audio) > len(kinds) - 1 - kinds[::-1].index(m.Delta)
    assert sound_of(events) == ramp(0, FRAMES * SAMPLES), "a limit of silence is none of the whole"


async def test_a_talker_may_stop_before_its_thinker(stages: Orchestrator) -> None:
    events = await read(await say(stages, chat(), heard(tokens=2)))
    assert (text_of(events), sound_of(events)) == (f"{WORDS} ", ramp(0, 2 * SAMPLES))


async def test_a_chat_that_is_only_read_goes_nowhere_else(stages: Orchestrator) -> None:
    assert text_of(await read_text(await stages.submit("chat", "r1", chat()))) == f"{WORDS} "
    later = [replica.load.steps for stage in stages.status()[1:] for replica in stage.replicas]
    assert later == [replica.load.steps for stage in stages.status()[1:] for replica in stage.replicas]


async def test_stages_that_wait_for_all_of_their_input(tmp_path: Path) -> None:
    """A stage may wait longer for all than for a piece: nobody is silent meanwhile."""
    config = omni({"token_s": 0.3}, async_chunk=False, input_timeout_s=TIMEOUT_S)
    async with cluster(tmp_path, config) as (orchestrator, _):
        events = await read(await say(orchestrator, chat(), heard()))
        kinds = [type(event) for event in events]
        assert kinds.index(m.Audio) > len(kinds) - 1 - kinds[::-1].index(m.Delta)
        assert sound_of(events) == ramp(0, FRAMES * SAMPLES)


# ------------------------------------------------------------------------------------------------ what does not


@pytest.mark.parametrize(
    ("text", "speech", "message", "param"),
    [
        (chat(refuse="not this"), heard(), "not this", "stub"),
        (chat(), heard(refuse="not that"), "not that", "audio.stub"),
        (chat(), heard(vocoder={"refuse": "nor that"}), "nor that", "audio.stub"),
        (chat(), heard(voice="nobody"), "there is no voice 'nobody'; there are heart, stone", "audio.voice"),
    ],
)
async def test_what_one_refuses_nobody_begins(
    stages: Orchestrator, text: bytes, speech: bytes, message: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await say(stages, text, speech)
    assert (caught.value.status, str(caught.value), caught.value.body.error.param) == (400, message, param)


@pytest.mark.parametrize("name", [*ENDS, *DEATHS])
async def test_who_is_to_blame_is_told_and_others_go_on(stages: Orchestrator, name: str) -> None:
    """The other request began before, in replicas that the one with the fault is not in."""
    bystander = asyncio.create_task(chains.complete(stages, token_s=0.2))
    await asyncio.sleep(0.1)
    await chains.meet(stages, (ENDS | DEATHS)[name])
    await bystander


async def test_what_had_come_until_then_goes_out(stages: Orchestrator) -> None:
    events = await chains.meet(stages, ENDS["thinker fails"])
    assert text_of(events) == "one two three "


async def test_the_deadline_of_the_request_holds_for_all(stages: Orchestrator) -> None:
    error, _ = await chains.failure(await say(stages, chat(tokens=1000), heard(), limit_s=0.4))
    assert (error.status, error.body.error.code) == (504, "deadline_exceeded")


@pytest.mark.parametrize("batches", [0, 1, 4])
async def test_a_client_that_leaves(stages: Orchestrator, batches: int) -> None:
    await chains.leave(stages, "l", batches)
    await eventually(lambda: nothing_left(stages), 2)
