"""vLLM sleeps and wakes. On a CPU it only pauses; what happens to memory shows on a GPU (bench/gpu_check.py)."""

from __future__ import annotations

import json

import msgspec
import pytest

from app.engines.llm.engine import LlmEngine
from app.protocol.sleep import SleepOrder, SleepReport
from tests.engines.llm.recorder import Recorder

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("level", [1, 2])
async def test_it_answers_as_before_when_it_is_awake_again(
    engine: LlmEngine, hello: list[dict[str, str]], level: int
) -> None:
    body = json.dumps({"messages": hello, "max_tokens": 5, "temperature": 0}).encode()
    before = Recorder("chat", body)
    await engine.run(before)
    answer = await engine.call("sleep", msgspec.json.encode(SleepOrder(level)))
    assert msgspec.json.decode(answer, type=SleepReport).freed_bytes == 0
    assert engine.load().running == 0
    await engine.call("wake_up", b"{}")
    after = Recorder("chat", body)
    await engine.run(after)
    assert after.answer() == before.answer()
