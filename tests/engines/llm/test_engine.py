"""The engine as a whole: what it generates, aborts, reports and leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.cluster import messages as m
from app.engines.llm import kernels
from app.engines.llm.engine import LlmEngine
from app.engines.llm.frontend import Frontend
from tests.engines.llm.conftest import tiny_stage
from tests.engines.llm.recorder import Recorder, recorder, run, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


def frontend_of(engine: LlmEngine) -> Frontend:
    assert engine._process.frontend is not None
    return engine._process.frontend


async def generate(engine: LlmEngine, prompt: list[int], **sampling: Any) -> tuple[str, list[int]]:
    """What vLLM's own generate gives."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input

    params = SamplingParams(**sampling)
    async for output in frontend_of(engine).generate(tokens_input(prompt), params, f"oracle-{prompt}-{sampling}"):
        final = output.outputs[0]
    return final.text, list(final.token_ids)


async def nothing_runs(engine: LlmEngine) -> None:
    """vLLM's front end is empty, or will be within a second."""
    await until(lambda: frontend_of(engine).get_num_unfinished_requests() == 0, seconds=1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 42}])
async def test_text_and_ids_equal_vllm_generate(engine: LlmEngine, stream: bool, sampling: dict[str, Any]) -> None:
    prompt = [72, 69, 76, 76, 79]
    text, ids = await generate(engine, prompt, max_tokens=48, ignore_eos=True, **sampling)
    body = {"prompt": prompt, "max_tokens": 48, "ignore_eos": True, "stream": stream} | sampling
    plain = (await run(engine, "completion", body)).answer()["choices"][0]
    with_ids = (await run(engine, "completion", body | {"return_token_ids": True})).answer()["choices"][0]
    assert len(set(ids)) > 8
    assert plain["text"] == text
    assert with_ids["text"] == text
    assert [token for part in with_ids["token_ids"] for token in part] == ids


async def test_seeded_prompts_that_take_several_steps(engine: LlmEngine) -> None:
    """Together they are longer than what vLLM computes at once, so that some are computed in parts."""
    bodies = [
        {"prompt": [65 + seed] * 960, "temperature": 1, "seed": seed, "max_tokens": 8, "ignore_eos": True}
        for seed in range(12)
    ]
    frontend = frontend_of(engine)
    assert len(bodies) * 960 > 2 * frontend.vllm_config.scheduler_config.max_num_batched_tokens
    together = await asyncio.gather(*(run(engine, "completion", body) for body in bodies))
    for index in (0, 5, 11):
        alone = await run(engine, "completion", bodies[index])
        assert together[index].answer()["choices"] == alone.answer()["choices"]


async def test_64_at_once_equal_one_by_one(engine: LlmEngine) -> None:
    prompts = [f"prompt number {number} " + "x" * number for number in range(64)]
    bodies = [{"prompt": prompt, "temperature": 0, "max_tokens": 32, "stream": True} for prompt in prompts]
    together = await asyncio.gather(*(run(engine, "completion", body) for body in bodies))
    for index in (0, 31, 63):
        alone = await run(engine, "completion", bodies[index])
        assert alone.answer() | {"usage": None} == together[index].answer() | {"usage": None}
    assert len({request.answer()["choices"][0]["text"] for request in together}) > 32


async def cancelled_after_first_output(engine: LlmEngine, request: Recorder) -> None:
    task = asyncio.create_task(engine.run(request))
    await until(lambda: len(request.events) >= 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("chat", {}),
        ("chat", {"n": 3, "temperature": 1}),
        ("chat", {"logprobs": True}),
        ("completion", {}),
        ("completion", {"prompt": ["a", "b", "c"]}),
        ("completion", {"prompt": ["a", "b", "c"], "logprobs": 1}),
    ],
)
async def test_cancel_aborts_a_stream(engine: LlmEngine, hello: Any, kind: str, extra: dict[str, Any]) -> None:
    body = {"messages": hello} if kind == "chat" else {"prompt": "hello"}
    body |= {"max_tokens": 900, "ignore_eos": True, "stream": True} | extra
    request = recorder(kind, body)
    await cancelled_after_first_output(engine, request)
    await nothing_runs(engine)
    count = len(request.events)
    await asyncio.sleep(0.05)
    assert len(request.events) == count


@pytest.mark.parametrize(
    ("kind", "extra"),
    [("chat", {}), ("chat", {"logprobs": True}), ("completion", {}), ("completion", {"prompt": ["a", "b"], "n": 2})],
)
async def test_cancel_aborts_a_whole_answer(engine: LlmEngine, hello: Any, kind: str, extra: dict[str, Any]) -> None:
    body = {"messages": hello} if kind == "chat" else {"prompt": "hello"}
    request = recorder(kind, body | {"max_tokens": 900, "ignore_eos": True, "temperature": 1} | extra)
    task = asyncio.create_task(engine.run(request))
    await until(lambda: m.Accepted() in request.events)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_runs(engine)
    assert request.events == [m.Accepted()]


async def test_cancel_at_any_moment_leaves_nothing(engine: LlmEngine, hello: Any) -> None:
    body = {"messages": hello, "max_tokens": 900, "ignore_eos": True, "stream": True}
    for turns in range(24):
        task = asyncio.create_task(engine.run(recorder("chat", body)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await nothing_runs(engine)


async def test_a_broken_request_leaves_the_others_alone(engine: LlmEngine, hello: Any) -> None:
    class Broken(Recorder):
        def emit(self, event: m.AnyEvent) -> None:
            if isinstance(event, m.Delta):
                raise RuntimeError("this sink is broken")
            super().emit(event)

    body = {"messages": hello, "max_tokens": 100, "ignore_eos": True, "stream": True, "temperature": 0}
    neighbour = asyncio.create_task(run(engine, "chat", body))
    whole = recorder("chat", body)
    with pytest.raises(Exception, match="this sink is broken"):
        await engine.run(Broken("chat", whole.body))
    assert (await neighbour).answer()["usage"]["completion"] == 100
    await nothing_runs(engine)


async def test_load_counts_requests_and_steps(engine: LlmEngine, hello: Any) -> None:
    before = engine.load()
    assert (before.running, before.waiting) == (0, 0)
    body = {"messages": hello, "max_tokens": 400, "ignore_eos": True, "stream": True}
    requests = [recorder("chat", body) for _ in range(5)]
    tasks = [asyncio.create_task(engine.run(request)) for request in requests]
    await until(lambda: engine.load().running == 5)
    await asyncio.gather(*tasks)
    after = engine.load()
    assert (after.running, after.waiting) == (0, 0)
    assert after.steps >= before.steps + 400


async def test_more_than_the_slots_wait(engine: LlmEngine) -> None:
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
    tasks = [asyncio.create_task(run(engine, "completion", body)) for _ in range(160)]
    most_waiting = most_running = 0
    while not all(task.done() for task in tasks):
        load = engine.load()
        most_waiting, most_running = max(most_waiting, load.waiting), max(most_running, load.running)
        await asyncio.sleep(0.01)
    assert all(task.result().answer()["usage"]["completion"] == 60 for task in tasks)
    assert most_running == 128
    assert most_waiting >= 32


async def test_it_runs_on_the_fused_kernels(engine: LlmEngine) -> None:
    priority = frontend_of(engine).vllm_config.kernel_config.ir_op_priority
    assert priority.rms_norm[0] == priority.fused_add_rms_norm[0] == kernels.PROVIDER


async def test_healthy(engine: LlmEngine) -> None:
    await engine.check_health()


async def test_not_started_refuses(hello: Any) -> None:
    idle = LlmEngine(tiny_stage(), ["tiny"])
    assert idle.load() == m.Load()
    with pytest.raises(Exception, match="still loading"):
        await idle.run(recorder("chat", {"messages": hello}))
    await idle.stop()
