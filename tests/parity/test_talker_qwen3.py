"""Qwen3-Omni's talker on vLLM says what transformers' says, to the last code of each frame."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import torch
import transformers

from app.cluster.messages import AnyEvent, Done, Usage
from app.cluster.tensors import Tensor
from app.engines.omni.talker.engine import TalkerEngine
from app.engines.omni.torchtensors import from_torch, to_torch
from app.protocol.speechtask import SpeechTask, encode_task
from app.settings.schema import StageConfig
from tests import tiny_omni
from tests.parity.qwen3_oracle import Thought, say
from tests.parity.qwen3_thoughts import thought

pytestmark = pytest.mark.asyncio(loop_scope="module")
FRAMES = 40
GREEDY = {"temperature": 0.0, "max_tokens": FRAMES}
CONVERSATIONS: dict[str, list[tuple[str, str]]] = {
    "text": [("system", "Be brief."), ("user", "Is it so?")],
    "history": [("system", "Be brief."), ("user", "Hello."), ("assistant", "Hello to you."), ("user", "Is it so?")],
    "sound": [("user", "What is <sound>this?"), ("assistant", "A bell."), ("user", "And <sound> that?")],
    "picture": [("system", "Be brief."), ("user", "See <picture>."), ("assistant", "Yes."), ("user", "<picture>And?")],
    # Longer than what vLLM computes at once here.
    "long": [("user", "And then I said to them all, who listened: " * 4), ("assistant", "No."), ("user", "<sound>Yes!")],
}


class TalkRequest:
    """A request as the replica program makes it. `pieces` are its thought, in handovers; all that is said is kept."""

    kind, model, wants_tensors = "talk", "", True

    def __init__(self, request_id: str, pieces: list[dict[str, Tensor]], task: SpeechTask) -> None:
        self.request_id = request_id
        self.body = encode_task(task)
        self.events: list[AnyEvent] = []
        self.frames: list[list[int]] = []
        self._pieces = iter(pieces)

    def emit(self, event: AnyEvent) -> None:
        self.events.append(event)

    async def ready(self) -> None:
        await asyncio.sleep(0)

    async def next_input(self) -> bytes | None:
        raise NotImplementedError

    async def next_tensors(self) -> dict[str, Tensor] | None:
        await asyncio.sleep(0.002)
        return next(self._pieces, None)

    def emit_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.frames.extend(to_torch(tensors["codes"]).tolist())


def pieces_of(thought: Thought, cuts: list[int], senses: list[int]) -> list[dict[str, Tensor]]:
    """Handovers, cut before each of these positions: of text the embeddings, of the senses the hidden states."""
    seen = torch.isin(thought.ids, torch.tensor(senses))
    rows = torch.where(seen[:, None], thought.hidden, thought.embeddings)
    bounds = [0, *cuts, len(rows)]
    pieces = [
        {"token_ids": from_torch(thought.ids[start:end].int()), "rows": from_torch(rows[start:end])}
        for start, end in zip(bounds, bounds[1:], strict=False)
    ]
    pieces[0]["mrope_positions"] = from_torch(thought.positions.int())
    return pieces


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_omni.build("qwen3_omni_moe", tmp_path_factory.mktemp("qwen3_omni"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    return transformers.Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype="float32").eval()


@pytest.fixture(scope="module")
def thoughts(checkpoint: Path, reference: Any) -> dict[str, Thought]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    return {
        name: thought(reference, tokenizer, turns, seed=seed) for seed, (name, turns) in enumerate(CONVERSATIONS.items())
    }


@pytest.fixture(scope="module")
def expected(reference: Any, thoughts: dict[str, Thought]) -> dict[str, list[list[int]]]:
    said = {name: say(reference, thought, "ethan", FRAMES) for name, thought in thoughts.items()}
    for frames in said.values():
        assert len({tuple(frame) for frame in frames}) > 8, "a talker that repeats itself proves nothing"
    return said


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[TalkerEngine]:
    stage = StageConfig(
        stage_id=1,
        name="talker",
        kind="llm",
        model=str(checkpoint),
        model_stage="talker",
        engine_args={
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 64,
            "kv_cache_memory_bytes": 64 << 20,
        },
    )
    engine = TalkerEngine(stage, ["tiny"])
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
def senses(reference: Any) -> list[int]:
    config = reference.config.thinker_config
    return [config.audio_token_id, config.image_token_id, config.video_token_id]


async def talk(engine: TalkerEngine, name: str, pieces: list[dict[str, Tensor]], **task: Any) -> list[list[int]]:
    request = TalkRequest(name, pieces, SpeechTask(**({"voice": "ethan", "extra": GREEDY} | task)))
    await asyncio.wait_for(engine.run(request), 120)
    assert isinstance(request.events[-1], Done)
    assert isinstance(request.events[-2], Usage)
    return request.frames


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_thought_in_one_piece(
    engine: TalkerEngine, thoughts: dict[str, Thought], expected: dict[str, list[list[int]]], senses: list[int], name: str
) -> None:
    assert await talk(engine, name, pieces_of(thoughts[name], [], senses)) == expected[name]


async def test_16_at_once_in_pieces_of_any_size(
    engine: TalkerEngine, thoughts: dict[str, Thought], expected: dict[str, list[list[int]]], senses: list[int]
) -> None:
    cutter = random.Random(0)
    names = [list(CONVERSATIONS)[index % len(CONVERSATIONS)] for index in range(16)]

    async def one(index: int, name: str) -> list[list[int]]:
        length = len(thoughts[name].ids)
        cuts = sorted(cutter.sample(range(1, length), cutter.randint(1, length - 1)))
        return await talk(engine, f"{name}-{index}", pieces_of(thoughts[name], cuts, senses))

    said = await asyncio.gather(*(one(index, name) for index, name in enumerate(names)))
    assert [frames == expected[name] for frames, name in zip(said, names, strict=True)] == [True] * 16
