"""vLLM's thinkers write what transformers' do, and the talker is told what it would be told there, to the last row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from app.engines.omni.torchtensors import to_torch
from app.settings.schema import StageConfig
from tests.engines.llm.recorder import Recorder, recorder, refusal, until
from tests.parity.thinking import Oracle, Thought, chats
from tests.tiny_omni import build

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 24
BUDGET = 32
"""Positions that vLLM computes in a step: fewer than each prompt has."""
CACHES = {"qwen2_5_omni": 1536 * 544, "qwen3_omni_moe": 768 * 544}
"""Bytes for 544 positions: not for 16 chats at once, so that some are put off and computed anew."""
Json = dict[str, Any]


@pytest.fixture(scope="module", params=list(CACHES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(kind, tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def thoughts(kind: str, checkpoint: Path) -> dict[str, Thought]:
    oracle = Oracle(kind, checkpoint)
    return {name: oracle.think(chat, TOKENS) for name, chat in chats().items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(kind: str, checkpoint: Path) -> AsyncIterator[LlmEngine]:
    arguments = {
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": BUDGET,
        "kv_cache_memory_bytes": CACHES[kind],
        "block_size": 32,
        "enable_prompt_tokens_details": True,
    }
    stage = StageConfig(
        stage_id=0, name="thinker", kind="llm", model_stage="thinker", model=str(checkpoint), engine_args=arguments
    )
    engine = LlmEngine(stage, ["tiny"])
    capabilities = await engine.start()
    assert capabilities.input_modalities == ["text", "audio", "image"]
    yield engine
    await engine.stop()


def asked(name: str, **more: Any) -> Json:
    return {"messages": chats()[name].messages(), "max_tokens": TOKENS, "temperature": 0} | more


async def spoken(engine: LlmEngine, body: Json) -> Recorder:
    """A chat that somebody will speak, to its end."""
    request = Recorder("chat", json.dumps({"model": "tiny"} | body).encode(), wants_tensors=True)
    async with asyncio.timeout(60):
        await engine.run(request)
    return request


def check(request: Recorder, thought: Thought) -> None:
    """The text is the oracle's, and so is what was handed on: each position once, in order, and none beyond."""
    assert request.answer()["choices"][0]["text"] == thought.text
    first, handed = request.handed_on[0], request.handed_on
    assert torch.equal(to_torch(first["mrope_positions"]).long(), thought.positions)
    assert all("mrope_positions" not in tensors for tensors in handed[1:])
    assert torch.equal(torch.cat([to_torch(tensors["token_ids"]) for tensors in handed]).long(), thought.ids[:-1])
    rows = torch.cat([to_torch(tensors["rows"]) for tensors in handed])
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, thought.rows, rtol=1e-4, atol=1e-4)


async def test_the_oracle_can_tell_mistakes(thoughts: dict[str, Thought]) -> None:
    """Prompts need several steps, some answers end by themselves, and few rows are like their neighbours."""
    assert len({thought.text for thought in thoughts.values()}) == len(thoughts)
    assert {len(thought.ids) - thought.positions.shape[1] < TOKENS for thought in thoughts.values()} == {True, False}
    for thought in thoughts.values():
        assert thought.positions.shape[1] > BUDGET
        assert len(thought.rows) == len(thought.ids) - 1 > thought.positions.shape[1]
        assert (thought.rows[1:] - thought.rows[:-1]).abs().amax(1).quantile(0.2) > 0.1


@pytest.mark.parametrize("name", list(chats()))
@pytest.mark.parametrize("more", [{"stream": True}, {}, {"logprobs": True}], ids=["stream", "whole", "whole in full"])
async def test_rows_are_what_transformers_tells_its_talker(
    engine: LlmEngine, thoughts: dict[str, Thought], name: str, more: Json
) -> None:
    check(await spoken(engine, asked(name, **more)), thoughts[name])


async def test_16_at_once_some_of_them_put_off(engine: LlmEngine, thoughts: dict[str, Thought]) -> None:
    names = list(thoughts) * 4
    requests = await asyncio.gather(*(spoken(engine, asked(name, stream=True)) for name in names))
    for name, request in zip(names, requests, strict=True):
        check(request, thoughts[name])
    counters = (await engine.call("metrics", b"")).decode().splitlines()
    (preemptions,) = [line for line in counters if line.startswith("vllm:num_preemptions_total{")]
    assert float(preemptions.split()[-1]) > 0


async def test_the_prefix_cache_is_read_by_others_only(engine: LlmEngine, thoughts: dict[str, Thought]) -> None:
    for _ in range(2):
        request = recorder("chat", asked("text"))
        await engine.run(request)
    answer = request.answer()
    assert answer["choices"][0]["text"] == thoughts["text"].text
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= BUDGET
    check(await spoken(engine, asked("text")), thoughts["text"])


async def test_rows_begin_before_the_text_ends(engine: LlmEngine) -> None:
    """Also where the client reads none of it."""
    request = Recorder("chat", json.dumps(asked("text", stream=True, logprobs=True)).encode(), wants_tensors=True)
    request.funded.clear()
    task = asyncio.create_task(engine.run(request))
    await until(lambda: sum(tensors["rows"].shape[0] for tensors in request.handed_on) > BUDGET)
    assert m.Done() not in request.events
    request.funded.set()
    await task
    assert request.events[-1] == m.Done()


async def test_a_stop_string_ends_the_rows_with_the_text(engine: LlmEngine, thoughts: dict[str, Thought]) -> None:
    thought = thoughts["text"]
    prompt = thought.positions.shape[1]
    request = await spoken(engine, asked("text", stop=[thought.text[5:7]], stream=True))
    assert thought.text.startswith(request.answer()["choices"][0]["text"])
    ids = torch.cat([to_torch(tensors["token_ids"]) for tensors in request.handed_on])
    assert len(ids) == prompt + request.answer()["usage"]["completion"] - 1
    assert torch.equal(ids.long(), thought.ids[: len(ids)])


async def test_what_others_ask_sends_no_rows(engine: LlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine._thinker is not None
    await engine.run(recorder("chat", asked("text")))  # rows of the tests before have come by now
    seen: list[object] = []
    monkeypatch.setattr(engine._thinker._receiver, "_takers", Noted(seen))
    await engine.run(recorder("chat", asked("audio")))
    await spoken(engine, asked("text", max_tokens=2))
    assert len(set(seen)) == 1


class Noted(dict[int, Any]):
    """Notes what is looked up in it."""

    def __init__(self, seen: list[object]) -> None:
        super().__init__()
        self._seen = seen

    def get(self, key: int, default: Any = None) -> Any:
        self._seen.append(key)
        return super().get(key, default)


async def test_an_aborted_chat_leaves_nothing(engine: LlmEngine, thoughts: dict[str, Thought]) -> None:
    assert engine._thinker is not None
    request = Recorder("chat", json.dumps(asked("text", max_tokens=400)).encode(), wants_tensors=True)
    task = asyncio.create_task(engine.run(request))
    await until(lambda: len(request.handed_on) > 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.load().running + engine.load().waiting == 0, seconds=1)
    assert engine._thinker._receiver._takers == {}
    check(await spoken(engine, asked("text")), thoughts["text"])


async def test_a_chat_fails_where_its_rows_find_no_room(engine: LlmEngine) -> None:
    full = EngineError(m.Failed(503, "no room", "service_unavailable_error", code=m.TENSORS_FULL))

    class Slow(Recorder):
        def emit_tensors(self, tensors: Any) -> None:
            super().emit_tensors(tensors)
            if len(self.handed_on) == 6:
                raise full

    for more in ({"stream": True}, {"logprobs": True}, {"stream": True, "logprobs": True}):
        request = Slow("chat", json.dumps(asked("text", max_tokens=400, **more)).encode(), wants_tensors=True)
        with pytest.raises(EngineError) as caught:
            await engine.run(request)
        assert caught.value is full
        assert len(request.handed_on) == 6
        await until(lambda: engine.load().running + engine.load().waiting == 0, seconds=1)


async def test_several_answers_cannot_be_spoken(engine: LlmEngine) -> None:
    request = Recorder("chat", json.dumps(asked("text", n=2)).encode(), wants_tensors=True)
    with pytest.raises(EngineError) as caught:
        await engine.run(request)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, "n")
    request = Recorder("completion", json.dumps({"prompt": "a"}).encode(), wants_tensors=True)
    with pytest.raises(EngineError, match="only chats"):
        await engine.run(request)


async def test_videos_are_refused_where_they_cannot_be_read(engine: LlmEngine) -> None:
    part = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    failed = await refusal(engine, "chat", asked("text") | {"messages": [{"role": "user", "content": [part]}]})
    assert failed.status == 400
