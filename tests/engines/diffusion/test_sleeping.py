"""A pipeline that sleeps gives its weights back, and draws the same picture when it is awake again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.diffusion.engine import DiffusionEngine
from app.protocol.pictures import LoraChoice
from app.protocol.sleep import SleepOrder, SleepReport
from tests.engines.diffusion.adapters import write_adapter
from tests.engines.diffusion.asking import Directories, Pipelines, ask, started, task


async def sleep(engine: DiffusionEngine, level: int) -> int:
    answer = await engine.call("sleep", msgspec.json.encode(SleepOrder(level)))
    return msgspec.json.decode(answer, type=SleepReport).freed_bytes


def size(engine: DiffusionEngine) -> int:
    assert engine._service is not None
    parts = engine._service.runner._pipe.components.values()
    return sum(p.numel() * p.element_size() for part in parts if hasattr(part, "parameters") for p in part.parameters())


@pytest.mark.parametrize("kind", ["sd", "qwenimage", "wan"])
async def test_level_2_frees_all_weights_and_reads_them_again(kind: str, tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines(kind), enable_sleep_mode=True) as engine:
        before = (await ask(engine, task())).pictures[0]
        whole = size(engine)
        assert await sleep(engine, 2) >= whole > 0
        assert size(engine) == 0
        assert await sleep(engine, 2) == 0, "it sleeps already"
        await engine.call("wake_up", b"{}")
        assert size(engine) == whole
        assert np.array_equal((await ask(engine, task())).pictures[0], before)


async def test_level_1_frees_nothing_where_weights_are_in_host_memory_anyway(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd"), enable_sleep_mode=True) as engine:
        before = (await ask(engine, task())).pictures[0]
        assert await sleep(engine, 1) == 0
        assert await sleep(engine, 2) > 0, "deeper"
        await engine.call("wake_up", b"{}")
        assert np.array_equal((await ask(engine, task())).pictures[0], before)


async def test_adapters_outlast_it(tiny_pipelines: Directories, tiny_pipeline: Pipelines, tmp_path: Path) -> None:
    path = write_adapter(tiny_pipeline("sd"), tmp_path / "style.safetensors", seed=1)
    styled = task(lora=[LoraChoice(name="style")])
    async with started(tiny_pipelines("sd"), enable_sleep_mode=True) as engine:
        await engine.call("load_adapter", msgspec.json.encode(m.Adapter(0, "style", str(path))))
        before = (await ask(engine, styled)).pictures[0]
        await sleep(engine, 2)
        await engine.call("wake_up", b"{}")
        assert np.array_equal((await ask(engine, styled)).pictures[0], before)


async def test_both_ranks_sleep(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd"), enable_sleep_mode=True, cfg_parallel_size=2) as engine:
        before = (await ask(engine, task(guidance_scale=4.0))).pictures[0]
        assert await sleep(engine, 2) > 0
        await engine.call("wake_up", b"{}")
        assert np.array_equal((await ask(engine, task(guidance_scale=4.0))).pictures[0], before)


async def test_quantized_weights_cannot_be_dropped(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("flux"), enable_sleep_mode=True, quantization="int8") as engine:
        with pytest.raises(EngineError, match="are quantized") as refused:
            await sleep(engine, 2)
        assert (refused.value.failed.status, refused.value.failed.param) == (400, "level")
        assert (await ask(engine, task())).pictures


async def test_without_the_flag_it_cannot(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("sd")) as engine:
        with pytest.raises(EngineError) as refused:
            await sleep(engine, 1)
    assert refused.value.failed.status == 404
