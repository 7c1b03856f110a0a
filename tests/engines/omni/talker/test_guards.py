"""What the talker leans on in vLLM without vLLM promising it. A test that fails here names what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.sampling_params import RequestOutputKind

from app.engines.llm.frontend import Frontend
from app.engines.omni.talker.conditioning import engine_input, mrope_positions
from app.engines.omni.talker.engine import TalkerEngine
from app.engines.omni.talker.family import Chunk
from app.engines.omni.talker.qwen2_5 import talker_config
from tests.engines.omni.talker.talking import WIDTH

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT, STEPS = 20, 12
NUMBERS = iter(range(1_000_000))


@pytest.fixture
def vllm(talker: TalkerEngine) -> Frontend:
    assert talker._process is not None
    assert talker._process.frontend is not None
    return talker._process.frontend


def rows(count: int, seed: int = 0, gate: int = 1) -> torch.Tensor:
    """Noise, with the column that adds the codec embedding."""
    noise = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.cat((noise, torch.full((count, 1), float(gate))), dim=1)


def params(max_tokens: int, **options: Any) -> SamplingParams:
    fixed = {"temperature": 0, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.DELTA}
    return SamplingParams(max_tokens=max_tokens, **(fixed | options))


async def sample(vllm: Frontend, ids: Sequence[int], chunk: Chunk, max_tokens: int, **options: Any) -> list[int]:
    """In one piece."""
    name = f"guard-{next(NUMBERS)}"
    sampled: list[int] = []
    async for output in vllm.generate(engine_input(ids, chunk, name), params(max_tokens, **options), name):
        sampled.extend(output.outputs[0].token_ids)
    return sampled


async def sample_in_two(
    vllm: Frontend,
    ids: Sequence[int],
    chunk: Chunk,
    first: int,
    rest: int,
    sent_again: int | None = None,
    **options: Any,
) -> list[int]:
    """As a session of two chunks: `first` ids of the one, then `rest` of the other, which begins with the last of them
    or with `sent_again`."""
    name = f"guard-{next(NUMBERS)}"
    cut = len(ids) + first - 1
    sampled: list[int] = []
    heard = asyncio.Event()

    async def stream() -> AsyncGenerator[StreamingInput, None]:
        head = Chunk(chunk.rows[:cut], positions=chunk.positions)
        yield StreamingInput(engine_input(ids, head, f"{name}-1"), params(first, **options))
        while len(sampled) < first:
            await heard.wait()
            heard.clear()
        last = sampled[-1] if sent_again is None else sent_again
        yield StreamingInput(engine_input([last], Chunk(chunk.rows[cut:]), f"{name}-2"), params(rest, **options))

    async for output in vllm.generate(stream(), params(1), name):
        sampled.extend(output.outputs[0].token_ids)
        heard.set()
    return sampled


def conversation(seed: int = 0) -> Chunk:
    return Chunk(torch.cat((rows(PROMPT, seed, gate=0), rows(STEPS, seed + 1))))


IDS = [70] * PROMPT


async def test_rows_of_an_item_past_the_prompt_are_gathered_while_decoding(vllm: Frontend) -> None:
    chunk = conversation()
    changed = chunk.rows.clone()
    changed[PROMPT + 3] = rows(1, 99)[0]
    before = await sample(vllm, IDS, chunk, STEPS)
    after = await sample(vllm, IDS, Chunk(changed), STEPS)
    assert before[:4] == after[:4], "the row of position p must not be heard before the id sampled at p"
    assert before != after, "vLLM does not gather multimodal rows past the prompt any more: no talker hears its thinker"


async def test_positions_without_an_item_are_left_to_the_model(vllm: Frontend) -> None:
    chunk = conversation()
    ids = await sample(vllm, IDS, Chunk(chunk.rows[: PROMPT + 4]), STEPS)
    assert ids[:5] == (await sample(vllm, IDS, chunk, STEPS))[:5]
    assert len(ids) == STEPS, "vLLM does not go on past the end of an item"


@pytest.mark.parametrize("first", [1, 2, 7])
async def test_a_chunk_goes_on_where_the_last_one_ended(vllm: Frontend, first: int) -> None:
    chunk = conversation(3)
    whole = await sample(vllm, IDS, chunk, STEPS)
    assert await sample_in_two(vllm, IDS, chunk, first, STEPS - first) == whole, (
        "vLLM does not drop the last sampled id of a chunk any more, or does not count the ranges of a chunk's items "
        "from the chunk's beginning"
    )


async def test_the_last_id_of_a_chunk_is_dropped(vllm: Frontend) -> None:
    chunk = conversation(3)
    whole = await sample(vllm, IDS, chunk, STEPS)
    other = await sample_in_two(vllm, IDS, chunk, 4, STEPS - 4, sent_again=(whole[3] + 1) % 64)
    assert other[:4] == whole[:4]
    assert other != whole, "what a chunk begins with is not what vLLM computes in the place of the id sampled last"


async def test_penalties_count_the_ids_of_the_prompt_and_of_all_chunks(vllm: Frontend) -> None:
    chunk = Chunk(torch.cat((rows(PROMPT, 5, gate=0), rows(1, 6).expand(STEPS, -1))))
    plain = await sample(vllm, IDS, chunk, STEPS)
    assert len(set(plain)) < STEPS, "there is something to be punished"
    punished = await sample(vllm, [*IDS[:-1], plain[0]], chunk, 1, repetition_penalty=2.0)
    assert punished != plain[:1], "a repetition penalty does not count ids of the prompt, as transformers does"
    whole = await sample(vllm, IDS, chunk, STEPS, repetition_penalty=2.0)
    assert whole != plain
    in_two = await sample_in_two(vllm, IDS, chunk, 5, STEPS - 5, repetition_penalty=2.0)
    assert in_two == whole, "a repetition penalty has forgotten what an earlier chunk has sampled"


async def test_a_seed_goes_on_across_chunks(vllm: Frontend) -> None:
    chunk = conversation(6)
    options = {"temperature": 1.0, "seed": 5}
    whole = await sample(vllm, IDS, chunk, STEPS, **options)
    assert whole != await sample(vllm, IDS, chunk, STEPS, temperature=1.0, seed=6)
    in_two = await sample_in_two(vllm, IDS, chunk, 5, STEPS - 5, **options)
    assert in_two == whole, "a new chunk begins the numbers of a seed anew"


async def test_positions_of_the_first_item_hold_for_the_whole_session(vllm: Frontend) -> None:
    chunk = conversation(7)
    pictured = torch.arange(PROMPT).repeat(3, 1)
    pictured[1, 5:15], pictured[2, 5:15], pictured[:, 15:] = 5 + torch.arange(10) // 5, 5 + torch.arange(10) % 5, 40
    pictured[:, 15:] += torch.arange(5)
    seen = Chunk(chunk.rows, positions=pictured)
    whole = await sample(vllm, IDS, seen, STEPS)
    assert whole != await sample(vllm, IDS, chunk, STEPS), "vLLM does not ask the model for its M-RoPE positions"
    in_two = await sample_in_two(vllm, IDS, seen, 5, STEPS - 5)
    assert in_two == whole, "a later chunk has lost the M-RoPE positions of the first one"


async def test_ids_that_end_speech_do_so_where_the_end_of_text_is_ignored(vllm: Frontend) -> None:
    """That end is one of the checkpoint's generation_config.json: the thinker's."""
    chunk = conversation(8)
    whole = await sample(vllm, IDS, chunk, STEPS)
    assert await sample(vllm, IDS, chunk, STEPS, stop_token_ids=[whole[3]]) == whole[: whole.index(whole[3]) + 1]
    prepared = params(1, stop_token_ids=[5])
    prepared.update_from_generation_config({"eos_token_id": [6]}, 7)
    assert prepared.stop_token_ids == [5], "the thinker's end of text ends speech, of which it may be an ordinary code"


async def test_a_configuration_without_a_talker_is_left_as_it_is() -> None:
    empty = SimpleNamespace()
    assert talker_config(empty) is empty


async def test_positions_count_on_from_the_largest() -> None:
    known = torch.tensor([[0, 1, 1, 3], [0, 1, 2, 3], [0, 1, 1, 3]])
    features: Any = [SimpleNamespace(data={"positions": SimpleNamespace(data=known)})]
    positions, delta = mrope_positions(6, features)
    assert positions.tolist() == [[0, 1, 1, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 1, 3, 4, 5]]
    assert delta == 0
    positions, delta = mrope_positions(2, features)
    assert (positions.tolist(), delta) == ([[0, 1]] * 3, 0)
    assert mrope_positions(3, [])[0].tolist() == [[0, 1, 2]] * 3
