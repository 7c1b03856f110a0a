from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter
from prometheus_client.parser import text_string_to_metric_families

from app.engines.llm.engine import LlmEngine
from tests.engines.llm.recorder import recorder

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_engine_tells_what_vllm_counts(engine: LlmEngine, hello: Any) -> None:
    stranger = Counter("not_of_vllm", "Another library's")
    try:
        expected = await tokens(engine) + 5
        await engine.run(recorder("chat", {"messages": hello, "max_tokens": 5, "ignore_eos": True}))
        async with asyncio.timeout(5):
            while await tokens(engine) < expected:  # noqa: ASYNC110 - vLLM counts after it has handed an output out
                await asyncio.sleep(0.01)
        assert await tokens(engine) == expected
    finally:
        REGISTRY.unregister(stranger)


async def tokens(engine: LlmEngine) -> float:
    """vLLM's count of generated tokens; nothing but vLLM's series may be there."""
    families = list(text_string_to_metric_families((await engine.call("metrics", b"{}")).decode()))
    assert len(families) > 30
    assert all(family.name.startswith("vllm:") for family in families)
    assert not any(family.name.endswith("_created") for family in families)
    [value] = [x.value for family in families for x in family.samples if x.name == "vllm:generation_tokens_total"]
    return value
