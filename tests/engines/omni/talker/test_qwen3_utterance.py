"""How a Qwen3-Omni talker is conditioned; tests/parity/test_talker_qwen3.py shows that transformers does the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from app.engines.base import EngineError
from app.engines.omni.talker.family import Chunk
from app.engines.omni.talker.qwen3_utterance import Conditioning, Marks, Side
from app.engines.omni.torchtensors import from_torch

START, USER, ASSISTANT, SYSTEM, AUDIO = 1, 2, 3, 4, 5
MARKS = Marks(
    im_start=START, user=USER, assistant=ASSISTANT, senses=[AUDIO], prelude=[70, 71], codec_pad=80, codec_bos=81
)
SPEAKER = 90
PROMPT = [START, SYSTEM, 30, START, USER, AUDIO, 31, START, ASSISTANT, 32, START, USER, 33, START, ASSISTANT, 34]
WIDTH = 2


def made(ids: list[int], start: int = 0, positions: Any = None) -> dict[str, Any]:
    """A handover: rows are the numbers of their positions."""
    rows = torch.arange(start, start + len(ids), dtype=torch.float32)[:, None].expand(-1, WIDTH)
    tensors = {"token_ids": from_torch(torch.tensor(ids, dtype=torch.int32)), "rows": from_torch(rows)}
    if start == 0:
        positions = torch.arange(len(PROMPT)).expand(3, -1) if positions is None else positions
        tensors["mrope_positions"] = from_torch(positions.int())
    return tensors


@pytest.fixture
def conditioning() -> Conditioning:
    return Conditioning(MARKS, WIDTH, SPEAKER)


def first(conditioning: Conditioning, **given: Any) -> Chunk:
    conditioning.feed(made([*PROMPT, 40], **given))
    chunk = conditioning.take()
    assert chunk is not None
    return chunk


def test_the_prompt_is_what_the_user_said_and_the_opening_of_the_answer(conditioning: Conditioning) -> None:
    chunk = first(conditioning)
    heard = [3, 4, 5, 6, 10, 11, 12]
    sides = [Side.TEXT] * 2 + [Side.SENSES] + [Side.TEXT] * 4
    opening = [Side.TEXT] * 3 + [Side.TTS_PAD] * 3 + [Side.TTS_BOS, Side.TEXT]
    assert chunk.rows[:, 0].tolist() == [*heard, 13, 14, 15, 0, 0, 0, 0, 16]
    assert chunk.rows[:, -2].tolist() == [*sides, *opening]
    assert chunk.rows[:, -1].tolist() == [0] * 10 + [1] * 5
    assert list(chunk.prompt_token_ids) == [80] * 10 + [70, 71, SPEAKER, 80, 81]
    assert chunk.positions is not None
    assert torch.equal(chunk.positions, torch.arange(15).expand(3, -1))
    assert not chunk.last


def test_nothing_is_taken_before_the_first_token_of_the_reply(conditioning: Conditioning) -> None:
    conditioning.feed(made(PROMPT[:7]))
    assert conditioning.take() is None
    conditioning.feed(made(PROMPT[7:], start=7))
    assert conditioning.take() is None
    conditioning.feed(made([40], start=len(PROMPT)))
    assert conditioning.take() is not None
    assert conditioning.take() is None


def test_a_reply_that_never_comes_is_never_taken(conditioning: Conditioning) -> None:
    conditioning.feed(made(PROMPT))
    conditioning.end()
    assert conditioning.take() is None


def test_the_reply_row_by_row_and_its_end(conditioning: Conditioning) -> None:
    first(conditioning)
    conditioning.feed(made([41, 42], start=17))
    conditioning.feed(made([43], start=19))
    chunk = conditioning.take()
    assert chunk is not None
    assert chunk.rows.tolist() == [[position, position, Side.TEXT, 0] for position in (17, 18, 19)]
    assert (chunk.prompt_token_ids, chunk.positions, chunk.last) == ((), None, False)
    conditioning.end()
    chunk = conditioning.take()
    assert chunk is not None
    assert chunk.rows.tolist() == [[0, 0, Side.TTS_EOS, 0]]
    assert chunk.last
    assert conditioning.take() is None


def test_all_of_it_in_one_piece(conditioning: Conditioning) -> None:
    conditioning.feed(made([*PROMPT, 40, 41]))
    conditioning.end()
    chunk = conditioning.take()
    assert chunk is not None
    assert chunk.last
    assert chunk.rows[-3:, -2].tolist() == [Side.TEXT, Side.TEXT, Side.TTS_EOS]
    assert len(chunk.rows) == len(chunk.prompt_token_ids) + 2
    assert conditioning.take() is None


def test_positions_close_up_where_turns_are_left_out(conditioning: Conditioning) -> None:
    """Inside a turn they stay as far apart as a picture has made them."""
    positions = torch.arange(len(PROMPT)).expand(3, -1).clone()
    positions[:, 5] = torch.tensor([5, 9, 7])
    positions[:, 6:] += 4
    chunk = first(conditioning, positions=positions)
    assert chunk.positions is not None
    assert chunk.positions[:, 2].tolist() == [2, 6, 4]
    assert chunk.positions[0, [0, 1, 3, 4, 5, 6, 7, 14]].tolist() == [0, 1, 7, 8, 9, 10, 11, 18]


def test_rows_keep_their_type(conditioning: Conditioning) -> None:
    tensors = made([*PROMPT, 40])
    tensors["rows"] = from_torch(torch.ones(len(PROMPT) + 1, WIDTH, dtype=torch.bfloat16))
    conditioning.feed(tensors)
    conditioning.end()
    chunk = conditioning.take()
    assert chunk is not None
    assert chunk.rows.dtype == torch.bfloat16
    assert chunk.rows[-1, -2] == Side.TTS_EOS


def test_a_template_without_a_turn_of_the_assistant_is_the_clients(conditioning: Conditioning) -> None:
    conditioning.feed(made([START, USER, *[30] * (len(PROMPT) - 2), 40]))
    with pytest.raises(EngineError, match="no turn of the assistant") as caught:
        conditioning.take()
    assert caught.value.failed.status == 400


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mrope_positions": None}, "mrope_positions"),
        ({"mrope_positions": torch.zeros(2, 3, dtype=torch.int32)}, "positions"),
        ({"rows": torch.zeros(len(PROMPT) + 1, WIDTH + 1)}, "width"),
        ({"token_ids": torch.zeros(3, dtype=torch.int32)}, "rows"),
    ],
)
def test_what_no_thinker_of_this_model_makes_is_told(
    conditioning: Conditioning, change: dict[str, torch.Tensor | None], problem: str
) -> None:
    tensors = made([*PROMPT, 40])
    for name, value in change.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = from_torch(value)
    with pytest.raises(EngineError, match=problem) as caught:
        conditioning.feed(tensors)
    assert caught.value.failed.status == 500
