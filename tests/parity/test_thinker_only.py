"""A thinker without a talker is a language model that sees and hears, and answers in text what transformers' does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from app.settings.schema import StageConfig
from tests.engines.llm.recorder import Recorder, run
from tests.parity.thinking import Oracle, chats
from tests.tiny_omni import build

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 24


@pytest.fixture(scope="module", params=["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(kind, tmp_path_factory.mktemp("omni"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[LlmEngine]:
    arguments = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": 16 << 20}
    stage = StageConfig(stage_id=0, name="llm", kind="llm", model=str(checkpoint), engine_args=arguments)
    engine = LlmEngine(stage, ["tiny"])
    await engine.start()
    yield engine
    await engine.stop()


async def test_texts_are_those_of_transformers(engine: LlmEngine, kind: str, checkpoint: Path) -> None:
    oracle = Oracle(kind, checkpoint)
    bodies = {
        name: {"messages": chat.messages(), "max_tokens": TOKENS, "temperature": 0} for name, chat in chats().items()
    }
    requests = await asyncio.gather(*(run(engine, "chat", body) for body in bodies.values()))
    texts = {name: request.answer()["choices"][0]["text"] for name, request in zip(bodies, requests, strict=True)}
    assert texts == {name: oracle.think(chat, TOKENS).text for name, chat in chats().items()}
    assert len(set(texts.values())) == len(texts)


async def test_nothing_of_it_can_be_spoken(engine: LlmEngine) -> None:
    body = {"messages": chats()["text"].messages()}
    with pytest.raises(EngineError, match="hands nothing on") as caught:
        await engine.run(Recorder("chat", json.dumps(body).encode(), wants_tensors=True))
    assert caught.value.failed.status == 400
