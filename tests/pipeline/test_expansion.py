"""Prompts that a language model writes, on stub stages: what is drawn and told, and every way in which it fails."""

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
from app.engines import stubpictures
from app.pipeline.expansion import question
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureTask, encode_task
from app.settings.schema import Settings
from tests.clusters import cluster, eventually, settings
from tests.pipeline.speaking import stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


def drawing(template: str, **text: Any) -> Settings:
    """A stage "text" that writes the prompts of a stage "picture"."""
    config = settings()
    config.stages = [
        stage(0, "text", engine_args=text),
        stage(
            1,
            "picture",
            (0,),
            outputs=["image"],
            engine_args={"chats": False, "draws": True},
            prompt_template=template,
            input_timeout_s=1.0,
        ),
    ]
    return config


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Orchestrator]:
    async with cluster(tmp_path_factory.mktemp("x"), drawing("Paint {prompt} well", token_s=0.01)) as (orchestrator, _):
        yield orchestrator


def task(prompt: str = "a {cat}", **fields: Any) -> bytes:
    return encode_task(PictureTask(prompt=prompt, seed=3, **fields))


def idle(orchestrator: Orchestrator) -> bool:
    connections = [connection for pool in orchestrator._graph.pools.values() for connection in pool.connections]
    return not any(x.in_flight or x.info.load.running or x.info.load.waiting for x in connections)


async def expand(orchestrator: Orchestrator, body: bytes, **options: Any) -> list[m.AnyEvent]:
    stream = await orchestrator.expand("image", "r1", body, **options)
    try:
        return [event async for batch in stream for event in batch]
    finally:
        await stream.aclose()


async def refused(orchestrator: Orchestrator, body: bytes, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await expand(orchestrator, body, **options)
    await eventually(lambda: idle(orchestrator), 5)
    return caught.value


async def test_what_the_model_writes_is_drawn_and_told(stages: Orchestrator) -> None:
    assert stages.expands("image")
    told, *_, usage, done = await expand(stages, task(negative_prompt="dogs"))
    assert told == m.Extra(b'{"revised_prompt":"Paint a {cat} well"}')
    assert done == m.Done()
    expected = stubpictures.usage(PictureTask(prompt="Paint a {cat} well"))
    assert usage == expected, "the picture was drawn of another prompt"


async def test_a_model_that_says_nothing_leaves_the_prompt(tmp_path: Path) -> None:
    config = drawing("{prompt}")
    async with cluster(tmp_path, config) as (orchestrator, _):
        told, *_ = await expand(orchestrator, task("   "))
        assert told == m.Extra(b'{"revised_prompt":"   "}')


async def test_the_question() -> None:
    asked = json.loads(question('Say "{prompt}" {twice}: {prompt}', PictureTask(prompt="{prompt}", seed=5)))
    assert asked["messages"] == [{"role": "user", "content": 'Say "{prompt}" {twice}: {prompt}'}]
    assert (asked["seed"], asked["max_tokens"]) == (5, 512)
    assert "seed" not in json.loads(question("{prompt}", PictureTask(prompt="x")))


async def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_sent(stages: Orchestrator) -> None:
    error = await refused(stages, task(extra={"stub": {"refuse": "no"}}))
    assert (error.status, str(error)) == (400, "no")


async def test_the_picture_fails(stages: Orchestrator) -> None:
    error = await refused(stages, task(extra={"stub": {"fail_after": 1}}))
    assert error.status == 500


async def test_the_deadline_is_one_for_both(stages: Orchestrator) -> None:
    begun = asyncio.get_running_loop().time()
    error = await refused(stages, task(extra={"stub": {"tokens": 1000, "token_s": 0.1}}), limit_s=0.3)
    assert (error.status, error.body.error.code) == (504, "deadline_exceeded")
    assert asyncio.get_running_loop().time() - begun < 2


async def test_a_writer_that_is_silent(tmp_path: Path) -> None:
    async with cluster(tmp_path, drawing("{prompt}", token_s=5)) as (orchestrator, _):
        error = await refused(orchestrator, task())
        assert (error.status, error.body.error.code) == (504, m.INPUT_TIMEOUT)


async def test_a_writer_that_dies(tmp_path: Path) -> None:
    config = drawing("{prompt}", token_s=0.2)
    async with cluster(tmp_path, config) as (orchestrator, _):
        drawn = asyncio.create_task(expand(orchestrator, task("one two three four five six")))
        text = orchestrator._graph.pools[0].connections[0]
        await eventually(lambda: text.in_flight == 1, 5)
        os.kill(text.info.pid, signal.SIGKILL)
        with pytest.raises(ApiError) as caught:
            await drawn
        assert caught.value.status == 503


@pytest.mark.parametrize("batches", [0, 1])
async def test_a_client_that_leaves(stages: Orchestrator, batches: int) -> None:
    stream = await stages.expand("image", "r1", task(extra={"stub": {"tokens": 1000, "token_s": 0.01}}))
    for _ in range(batches):
        await anext(stream)
    await stream.aclose()
    await eventually(lambda: idle(stages), 5)


async def test_a_start_that_is_cancelled(stages: Orchestrator) -> None:
    start = asyncio.create_task(stages.expand("image", "r1", task("a " * 500)))
    await asyncio.sleep(0.1)
    start.cancel()
    await asyncio.wait({start})
    await eventually(lambda: idle(stages), 5)
