"""Qwen2.5-Omni's talker says the codes that transformers' does, however its input is cut and whoever else talks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.engines.omni.talker.engine import TalkerEngine
from app.protocol.speechtask import SpeechTask
from app.settings.schema import StageConfig
from tests.engines.omni.talker.talking import GREEDY, Talking, talk
from tests.parity.qwen2_5_talker import Reference, Thought
from tests.tiny_omni import SPEAKERS, build

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = ("text", "audio", "image")
BUDGET = 48
"""Positions that vLLM computes in a step: fewer than some prompts have, and than many sessions need together."""
BLOCKS = 24
"""Of 32 positions each: not enough for 16 sessions, which vLLM cannot preempt while they wait for their thinkers."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen2_5_omni", tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def thoughts(reference: Reference) -> dict[str, Thought]:
    return {kind: reference.think(reference.inputs(kind)) for kind in KINDS}


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


async def test_the_oracle_can_tell_mistakes(reference: Reference, thoughts: dict[str, Thought]) -> None:
    """Speech is long enough, and depends on each row of the reply; one prompt is longer than what a step computes."""
    assert max(thought.prompt for thought in thoughts.values()) > BUDGET
    for kind, thought in thoughts.items():
        codes = reference.talk(thought, SPEAKERS[0])
        assert len(codes) > 8
        assert len(set(codes)) > 4
        silenced = Thought(thought.inputs, thought.ids, thought.rows.clone(), thought.positions)
        silenced.rows[thought.prompt + 3] = 0
        assert reference.talk(silenced, SPEAKERS[0])[:3] == codes[:3], kind
        assert reference.talk(silenced, SPEAKERS[0]) != codes, kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [1.0, 1.05, 1.5])
async def test_codes_are_those_of_transformers(
    engine: TalkerEngine, reference: Reference, thoughts: dict[str, Thought], kind: str, penalty: float
) -> None:
    """All at once; and row by row, where each id that is repeated counts, whichever chunk it was said in."""
    thought = thoughts[kind]
    expected = reference.talk(thought, SPEAKERS[0], penalty)
    assert await talk(engine, Talking(repetition_penalty=penalty), thought.handovers([])) == expected
    single = list(range(1, len(thought.rows)))
    assert await talk(engine, Talking(repetition_penalty=penalty), thought.handovers(single)) == expected


async def test_sixteen_at_once_however_the_thinkers_pause(
    engine: TalkerEngine, reference: Reference, thoughts: dict[str, Thought]
) -> None:
    expected = {kind: reference.talk(thought, SPEAKERS[1]) for kind, thought in thoughts.items()}
    task = SpeechTask(voice=SPEAKERS[1], extra=GREEDY)

    async def one(number: int) -> bool:
        chance = random.Random(number)
        kind = KINDS[number % len(KINDS)]
        thought = thoughts[kind]
        ends = sorted(chance.sample(range(1, len(thought.rows)), chance.randint(0, 12)))
        pauses = [chance.choice((0.0, 0.0, 0.03)) for _ in ends]
        return await talk(engine, Talking(task), thought.handovers(ends), pauses) == expected[kind]

    assert all(await asyncio.gather(*(one(number) for number in range(16))))


async def test_sixteen_that_wait_for_their_thinkers_with_all_memory_in_their_hands(
    engine: TalkerEngine, reference: Reference, thoughts: dict[str, Thought]
) -> None:
    thought = thoughts["audio"]
    expected = reference.talk(thought, SPEAKERS[0])
    rows = list(range(thought.prompt + 1, len(thought.rows)))
    pauses = [0.0] + [0.01] * len(rows)
    said = await asyncio.gather(*(talk(engine, Talking(), thought.handovers(rows), pauses) for _ in range(16)))
    assert said == [expected] * 16


async def test_a_seed_says_the_same_however_the_input_is_cut(
    engine: TalkerEngine, thoughts: dict[str, Thought]
) -> None:
    """And in however many steps its prompt is computed, which depends on who else talks."""
    thought = thoughts["audio"]
    sampled = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05, "max_tokens": 64}

    async def say(seed: int, ends: list[int]) -> list[int]:
        return await talk(engine, Talking(SpeechTask(seed=seed, extra=sampled)), thought.handovers(ends))

    whole = await say(7, [])
    assert len(whole) > 4
    assert await say(7, list(range(1, len(thought.rows)))) == whole
    assert await asyncio.gather(*(say(7, []) for _ in range(6))) == [whole] * 6
    assert await say(8, []) != whole
