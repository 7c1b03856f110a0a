"""Qwen3-Omni's talker says the frames that transformers' does, to the last code of each, however its input is cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.engines.omni.talker.engine import TalkerEngine
from app.protocol.speechtask import SpeechTask
from app.settings.schema import StageConfig
from tests.engines.omni.talker.talking import Talking, talk
from tests.parity.qwen3_talker import CONVERSATIONS, Frames, Reference, Thought
from tests.tiny_omni import SPEAKERS, build

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOICES = [name.lower() for name in SPEAKERS]
LIMIT = 40
BUDGET = 64
"""Positions that vLLM computes in a step: fewer than some prompts have, and than many sessions need together."""
BLOCKS = 24
"""Of 32 positions each: not enough for 16 requests, so that some have to wait for room."""
GREEDY = {"temperature": 0, "repetition_penalty": 1.05, "max_tokens": LIMIT}
SAMPLED = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05, "max_tokens": LIMIT}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3_omni_moe", tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def thoughts(reference: Reference) -> dict[str, Thought]:
    return {name: reference.thought(name) for name in CONVERSATIONS}


@pytest.fixture(scope="module")
def expected(reference: Reference, thoughts: dict[str, Thought]) -> dict[str, Frames]:
    return {name: reference.talk(thought, VOICES[0], LIMIT) for name, thought in thoughts.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[TalkerEngine]:
    arguments = {
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 32,
        "max_num_batched_tokens": BUDGET,
        "block_size": 32,
        "num_gpu_blocks_override": BLOCKS,
        "kv_cache_memory_bytes": 64 << 20,
    }
    stage = StageConfig(
        stage_id=1, name="talker", kind="llm", model_stage="talker", model=str(checkpoint), engine_args=arguments
    )
    engine = TalkerEngine(stage, ["tiny"])
    await engine.start()
    yield engine
    await engine.stop()


def greedy() -> Talking:
    return Talking(SpeechTask(voice=VOICES[0], extra=GREEDY))


async def preemptions(engine: TalkerEngine) -> float:
    lines = (await engine.call("metrics", b"")).decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_preemptions_total{"))


def test_the_oracle_can_tell_mistakes(
    reference: Reference, thoughts: dict[str, Thought], expected: dict[str, Frames]
) -> None:
    """Some speech ends by itself and some goes on after its text; all depends on what was heard, seen and said."""
    assert max(thought.prompt for thought in thoughts.values()) > BUDGET
    assert min(len(frames) for frames in expected.values()) < LIMIT == max(len(frames) for frames in expected.values())
    assert max(len(thought.ids) - thought.prompt for thought in thoughts.values()) + 4 < LIMIT
    experts = [weight for name, weight in reference.model.talker.named_parameters() if ".experts." in name]
    assert min(weight.abs().mean() for weight in experts) > 0.05, "the experts say nothing"
    for name, thought in thoughts.items():
        frames = expected[name]
        assert len({tuple(frame) for frame in frames}) > 8, name
        silenced = thought.without(thought.prompt + 3)
        assert reference.talk(silenced, VOICES[0], LIMIT)[:3] == frames[:3], name
        assert reference.talk(silenced, VOICES[0], LIMIT) != frames, name
        for position in thought.sensed[:1]:
            assert reference.talk(thought.without(position), VOICES[0], LIMIT) != frames, name


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_frames_are_those_of_transformers(
    engine: TalkerEngine, thoughts: dict[str, Thought], expected: dict[str, Frames], name: str
) -> None:
    """All at once; and row by row, where each row waits for the frame before it."""
    thought = thoughts[name]
    assert await talk(engine, greedy(), thought.handovers([])) == expected[name]
    single = list(range(1, len(thought.ids)))
    assert await talk(engine, greedy(), thought.handovers(single)) == expected[name]


async def test_each_voice_speaks_otherwise(
    engine: TalkerEngine, reference: Reference, thoughts: dict[str, Thought], expected: dict[str, Frames]
) -> None:
    said = await talk(engine, Talking(SpeechTask(voice=VOICES[1], extra=GREEDY)), thoughts["text"].handovers([]))
    assert said == reference.talk(thoughts["text"], VOICES[1], LIMIT)
    assert said != expected["text"]


async def test_sixteen_at_once_however_the_thinkers_pause(
    engine: TalkerEngine, thoughts: dict[str, Thought], expected: dict[str, Frames]
) -> None:
    async def one(number: int, name: str) -> bool:
        chance = random.Random(number)
        ends = sorted(chance.sample(range(1, len(thoughts[name].ids)), chance.randint(0, 12)))
        pauses = [chance.choice((0.0, 0.0, 0.03)) for _ in ends]
        return await talk(engine, greedy(), thoughts[name].handovers(ends), pauses) == expected[name]

    names = list(islice(cycle(CONVERSATIONS), 16))
    assert all(await asyncio.gather(*(one(number, name) for number, name in enumerate(names))))


async def test_what_vllm_has_no_room_for_waits_and_nothing_is_preempted(
    engine: TalkerEngine, thoughts: dict[str, Thought], expected: dict[str, Frames]
) -> None:
    names = list(islice(cycle(CONVERSATIONS), 16))
    said = await asyncio.gather(*(talk(engine, greedy(), thoughts[name].handovers([])) for name in names))
    assert [frames == expected[name] for frames, name in zip(said, names, strict=True)] == [True] * 16
    assert await preemptions(engine) == 0, "vLLM cannot preempt a session that has gone on"


async def test_a_seed_says_the_same_whoever_else_talks(engine: TalkerEngine, thoughts: dict[str, Thought]) -> None:
    async def say(seed: int, ends: list[int]) -> list[Any]:
        request = Talking(SpeechTask(voice=VOICES[0], seed=seed, extra=SAMPLED))
        return await talk(engine, request, thoughts["text"].handovers(ends))

    whole = await say(7, [])
    assert len(whole) > 4
    again, cut, other = await asyncio.gather(say(7, []), say(7, list(range(1, len(thoughts["text"].ids)))), say(8, []))
    assert again == whole
    assert cut == whole
    assert other != whole
