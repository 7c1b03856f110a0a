"""The talker's engine as a whole: what it refuses, aborts, waits for and leaves behind."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.base import EngineError
from app.engines.llm.arguments import EngineArgumentError
from app.engines.omni.talker.engine import TalkerEngine
from app.protocol.speechtask import SpeechTask
from tests.engines.llm.recorder import until
from tests.engines.omni.talker.conftest import talker_stage
from tests.engines.omni.talker.talking import GREEDY, Talking, talk, thought

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG: dict[str, Any] = GREEDY | {"max_tokens": 400, "temperature": 1.5, "seed": 1}


def unfinished(engine: TalkerEngine) -> int:
    assert engine._process is not None
    assert engine._process.frontend is not None
    return engine._process.frontend.get_num_unfinished_requests()


async def refused(engine: TalkerEngine, request: Talking) -> m.Failed:
    with pytest.raises(EngineError) as caught:
        await engine.run(request)
    return caught.value.failed


async def test_what_is_wrong_is_refused_before_it_is_accepted(talker: TalkerEngine) -> None:
    for extra, param in [({"temperature": "hot"}, "temperature"), ({"tempo": 1}, "tempo"), ({"top_p": 2}, "top_p")]:
        request = Talking(SpeechTask(extra=extra))
        failed = await refused(talker, request)
        assert (failed.status, failed.param, request.events) == (400, param, [])
    failed = await refused(talker, Talking(SpeechTask(voice="Chelsey")))
    assert (failed.status, failed.param) == (400, "voice")
    assert "did you mean 'Chelsie'" in failed.message
    assert (await refused(talker, Talking(kind="chat"))).status == 400


async def test_parameters_of_the_stage_and_of_the_request(talker: TalkerEngine) -> None:
    """The stage's: 12 codes at most."""
    assert len(await talk(talker, Talking(SpeechTask()), [thought()])) == 12
    assert len(await talk(talker, Talking(SpeechTask(extra={"max_tokens": 3})), [thought()])) == 3


@pytest.mark.parametrize("handovers", [[], [thought(20, 0)]], ids=["nothing", "a prompt only"])
async def test_no_reply_is_no_sound(talker: TalkerEngine, handovers: list[dict[str, Tensor]]) -> None:
    assert await talk(talker, Talking(), handovers) == []
    assert unfinished(talker) == 0


async def test_a_reply_of_one_token(talker: TalkerEngine) -> None:
    assert await talk(talker, Talking(), [thought(20, 1)])


async def test_a_talker_that_waits_for_its_thinker_does_not_run(talker: TalkerEngine) -> None:
    whole = thought()
    expected = await talk(talker, Talking(), [whole])
    request = Talking()
    running = asyncio.create_task(talker.run(request))
    await _say_first(request)
    await until(lambda: talker.load().running == 0, seconds=5)
    before = talker.load()
    assert (before.running, before.waiting, unfinished(talker)) == (0, 0, 1)
    await asyncio.sleep(0.2)
    assert talker.load() == before
    request.hand(_rows(whole, 22, 32))
    request.hand(None)
    await asyncio.wait_for(running, 30)
    assert request.codes == expected


async def _say_first(request: Talking) -> None:
    """Hand on the prompt and two tokens of the reply, and wait for what can be said of them."""
    request.hand(_rows(thought(), 0, 22))
    await until(lambda: len(request.codes) == 2, seconds=30)


def _rows(whole: dict[str, Tensor], start: int, end: int) -> dict[str, Tensor]:
    width = whole["rows"].shape[1]
    part = {
        "token_ids": Tensor("int32", (end - start,), whole["token_ids"].data[4 * start : 4 * end]),
        "rows": Tensor("float32", (end - start, width), whole["rows"].data[4 * width * start : 4 * width * end]),
    }
    return part | ({"mrope_positions": whole["mrope_positions"]} if start == 0 else {})


async def test_what_is_aborted_leaves_nothing_in_vllm(talker: TalkerEngine) -> None:
    """While it waits for its thinker, and while it speaks."""
    waiting, speaking = Talking(), Talking(SpeechTask(extra=LONG))
    tasks = [asyncio.create_task(talker.run(request)) for request in (waiting, speaking)]
    await _say_first(waiting)
    speaking.hand(thought())
    await until(lambda: bool(speaking.codes), seconds=30)
    assert unfinished(talker) == 2
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await until(lambda: unfinished(talker) == 0, seconds=1)
    assert talker.load().running == 0


async def test_input_that_is_lost_ends_the_request_with_its_reason(talker: TalkerEngine) -> None:
    lost = EngineError(m.Failed(503, "gone", "service_unavailable_error", code=m.INPUT_LOST))

    class Losing(Talking):
        async def next_tensors(self) -> dict[str, Tensor] | None:
            if (tensors := await super().next_tensors()) is None:
                raise lost
            return tensors

    request = Losing()
    running = asyncio.create_task(talker.run(request))
    await _say_first(request)
    request.hand(None)
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(running, 30)
    assert caught.value is lost
    await until(lambda: unfinished(talker) == 0, seconds=1)


async def test_tensors_of_another_model_are_told(talker: TalkerEngine) -> None:
    request = Talking()
    request.hand({name: tensor for name, tensor in thought().items() if name != "mrope_positions"})
    failed = await refused(talker, request)
    assert failed.status == 500
    assert "mrope_positions" in failed.message


async def test_room_for_speech(talker: TalkerEngine) -> None:
    """A conversation that leaves none is the client's to shorten; speech that fills what is left just ends."""
    request = Talking()
    request.hand(thought(511, 1))
    failed = await refused(talker, request)
    assert (failed.status, failed.code) == (400, "context_length_exceeded")
    codes = await talk(talker, Talking(SpeechTask(extra=LONG)), [thought(500, 1)])
    assert 0 < len(codes) <= 512 - 502 + 1


async def test_calls(talker: TalkerEngine) -> None:
    assert b"vllm:" in await talker.call("metrics", b"")
    with pytest.raises(EngineError) as caught:
        await talker.call("sing", b"")
    assert caught.value.failed.status == 404


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"default_sampling_params": {"temperature": -1}}, ValueError),
        ({"engine_args": {"hf_overrides": {"vocab_size": 1}}}, EngineArgumentError),
        ({"engine_args": {"max_seqs": 1}}, EngineArgumentError),
    ],
)
async def test_a_stage_that_is_wrong_says_so(checkpoint: Path, fields: dict[str, Any], error: type[Exception]) -> None:
    stage = talker_stage(checkpoint)
    for name, value in fields.items():
        setattr(stage, name, value)
    engine = TalkerEngine(stage, ["t"])
    with pytest.raises(error, match=r"stage 1 \(talker\)"):
        await engine.start()
    await engine.stop()


async def test_a_dead_vllm_fails_what_runs_and_ends_the_replica(checkpoint: Path) -> None:
    older = set(multiprocessing.active_children())
    engine = TalkerEngine(talker_stage(checkpoint), ["t"])
    await engine.start()
    try:
        waiting, speaking = Talking(), Talking(SpeechTask(extra=LONG))
        tasks = [asyncio.create_task(engine.run(request)) for request in (waiting, speaking)]
        await _say_first(waiting)
        speaking.hand(thought())
        await until(lambda: bool(speaking.codes), seconds=30)
        (core,) = set(multiprocessing.active_children()) - older
        core.kill()
        with pytest.raises(EngineError) as caught:
            await asyncio.wait_for(tasks[1], 10)
        assert (caught.value.failed.status, caught.value.failed.code) == (503, "engine_dead")
        with pytest.raises(Exception, match=r"(?i)enginecore"):
            await engine.check_health()
        tasks[0].cancel()
    finally:
        await engine.stop()
