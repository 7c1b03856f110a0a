"""One real engine for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from vllm import envs

from app.engines.llm.engine import LlmEngine
from app.engines.llm.serving import Serving
from app.settings.schema import StageConfig
from tests.tiny import tiny_qwen3


def tiny_stage(**engine_args: object) -> StageConfig:
    """A stage with the tiny model; float32, so that what is generated does not depend on who shares the batch."""
    arguments = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 128} | engine_args
    return StageConfig(stage_id=0, name="llm", kind="llm", model=str(tiny_qwen3()), engine_args=arguments)


def serving_of(engine: LlmEngine) -> Serving:
    assert engine._service is not None
    assert engine._service._serving is not None
    return engine._service._serving


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def engine() -> AsyncIterator[LlmEngine]:
    stage = tiny_stage(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        enable_prompt_tokens_details=True,
        enable_sleep_mode=True,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
    )
    engine = LlmEngine(stage, ["tiny", "tiny-alias"])
    capabilities = await engine.start()
    assert (capabilities.max_model_len, capabilities.slots) == (1024, 128)
    yield engine
    await engine.stop()


@pytest.fixture
def hello() -> list[dict[str, str]]:
    return [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def _variables_are_read_anew() -> None:
    """A started engine has vLLM read its environment once and for all, in this process and so for all tests."""
    envs.disable_envs_cache()
