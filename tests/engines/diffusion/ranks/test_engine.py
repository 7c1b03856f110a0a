"""A diffusion engine of two ranks draws what one of one rank draws, leaves a call as a whole, and ends as a whole."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.diffusion.engine import DiffusionEngine
from app.engines.diffusion.ranks.group import Group, GroupEndedError
from app.protocol.pictures import LoraChoice
from tests.clusters import alive, eventually
from tests.engines.diffusion.adapters import write_adapter
from tests.engines.diffusion.asking import Asked, Directories, Pipelines, ask, started, stock, task

GUIDED = {"negative_prompt": "blurry", "true_cfg_scale": 3.0}


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def engine(tiny_pipelines: Directories) -> AsyncIterator[DiffusionEngine]:
    async with started(tiny_pipelines("qwenimage"), cfg_parallel_size=2) as engine:
        yield engine


def group_of(engine: DiffusionEngine) -> Group:
    assert engine._group is not None
    return engine._group


@pytest.mark.asyncio(loop_scope="class")
class TestOneEngine:
    """What one engine of two ranks does."""

    async def test_it_draws_what_one_rank_draws(self, engine: DiffusionEngine, tiny_pipeline: Pipelines) -> None:
        for guided in (GUIDED, {}):
            expected = stock(tiny_pipeline("qwenimage"), "qwenimage", **guided)
            asked = await ask(engine, task(**guided))
            assert np.abs(asked.pictures[0].astype(int) - expected.astype(int)).max() <= 1
            assert len(asked.of(m.Done)) == 1

    async def test_a_request_that_nobody_wants_ends_on_every_rank_and_the_next_is_drawn(
        self, engine: DiffusionEngine
    ) -> None:
        request = Asked(task(**GUIDED, num_inference_steps=200, progress=True))
        running = asyncio.create_task(engine.run(request))
        await request.until(m.Progress)
        running.cancel()
        began = time.monotonic()
        assert (await ask(engine, task(**GUIDED))).pictures
        assert time.monotonic() - began < 10

    async def test_what_every_rank_refuses_is_refused_and_the_next_is_drawn(self, engine: DiffusionEngine) -> None:
        with pytest.raises(EngineError) as refused:
            await ask(engine, task(**GUIDED, lora=[LoraChoice(name="nobody")]))
        assert refused.value.failed.status == 404
        assert (await ask(engine, task(**GUIDED))).pictures

    async def test_adapters_act_on_every_rank(
        self, engine: DiffusionEngine, tiny_pipelines: Directories, tiny_pipeline: Pipelines, tmp_path: Path
    ) -> None:
        path = write_adapter(tiny_pipeline("qwenimage"), tmp_path / "style.safetensors", seed=1)
        plain = (await ask(engine, task(**GUIDED))).pictures[0]
        await engine.call("load_adapter", msgspec.json.encode(m.Adapter(0, "style", str(path))))
        styled = (await ask(engine, task(**GUIDED, lora=[LoraChoice(name="style")]))).pictures[0]
        async with started(tiny_pipelines("qwenimage"), lora_path=[str(path)]) as alone:
            expected = (await ask(alone, task(**GUIDED))).pictures[0]
        assert np.abs(styled.astype(int) - expected.astype(int)).max() <= 1
        assert np.abs(styled.astype(int) - plain.astype(int)).max() > 1
        with pytest.raises(EngineError, match="no LoRA adapter"):
            await engine.call("unload_adapter", msgspec.json.encode(m.Adapter(0, "other", "")))
        await engine.call("unload_adapter", msgspec.json.encode(m.Adapter(0, "style", "")))
        assert np.array_equal((await ask(engine, task(**GUIDED))).pictures[0], plain)


async def test_the_death_of_a_rank_amid_a_call_is_known_at_once(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("qwenimage"), cfg_parallel_size=2) as engine:
        (other,) = group_of(engine)._processes
        request = Asked(task(**GUIDED, num_inference_steps=500, progress=True))
        running = asyncio.create_task(engine.run(request))
        await request.until(m.Progress)
        os.kill(other.pid, signal.SIGKILL)
        await eventually(lambda: bool(group_of(engine).broken), 2)
        with pytest.raises(GroupEndedError, match=r"rank 1 of the diffusion engine ended \(killed by SIGKILL\)"):
            await engine.check_health()
        running.cancel()
        await asyncio.wait([running])


async def test_a_rank_that_cannot_load_fails_the_start_and_leaves_none(tiny_pipelines: Directories) -> None:
    with pytest.raises(ValueError, match="cannot be split: diffusers has no plan for it"):
        async with started(tiny_pipelines("sd"), ulysses_degree=2):
            pass


async def test_ranks_end_with_their_engine(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd"), cfg_parallel_size=2) as engine:
        (other,) = group_of(engine)._processes
        meeting = group_of(engine).meeting
        assert meeting.exists()
    assert not alive(other.pid)
    assert not meeting.exists()
