"""What Qwen2.5-Omni's talker is conditioned on, row by row, and what is read of its checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from app.cluster.tensors import Tensor
from app.engines.base import EngineError
from app.engines.omni.talker.checkpoint import read_rows
from app.engines.omni.talker.families import open_family
from app.engines.omni.talker.qwen2_5 import Qwen2_5Talker, Qwen2_5Utterance
from app.engines.omni.torchtensors import from_torch, to_torch
from tests.engines.omni.talker.talking import WIDTH, thought
from tests.tiny_omni import CODES, SPEAKERS

EMBEDDINGS = "thinker.model.embed_tokens.weight"
PAD, START, END, MASK = CODES + 2, CODES + 3, CODES + 4, CODES + 6
PROMPT = 5


@pytest.fixture(scope="module")
def family(checkpoint: Path) -> Qwen2_5Talker:
    found = open_family(str(checkpoint))
    assert isinstance(found, Qwen2_5Talker)
    return found


@pytest.fixture
def utterance(family: Qwen2_5Talker) -> Qwen2_5Utterance:
    return family.begin("one", SPEAKERS[1])


@pytest.fixture(scope="module")
def embedded(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The thinker's embeddings of the tokens that the talker hears."""
    ids = json.loads((checkpoint / "config.json").read_bytes())["talker_config"]
    weights = load_file(checkpoint / "model.safetensors")[EMBEDDINGS]
    return {name: weights[ids[f"tts_text_{name}_token_id"]] for name in ("start", "end", "pad")}


def handed(rows: torch.Tensor, first: bool = False) -> dict[str, Tensor]:
    tensors = {"token_ids": from_torch(torch.zeros(len(rows), dtype=torch.int32)), "rows": from_torch(rows)}
    positions = {"mrope_positions": from_torch(torch.arange(PROMPT, dtype=torch.int32).repeat(3, 1))}
    return tensors | (positions if first else {})


def test_the_checkpoint_says_who_speaks_and_how(family: Qwen2_5Talker) -> None:
    assert (family.card.voices, family.card.default_voice) == (list(SPEAKERS), SPEAKERS[0])
    assert set(family.stop_token_ids) == {PAD, END}
    assert family.sampling == {
        "temperature": 0.9,
        "top_p": 0.8,
        "top_k": 40,
        "repetition_penalty": 1.05,
        "max_tokens": 4096,
    }


def test_the_first_chunk(utterance: Qwen2_5Utterance, embedded: dict[str, torch.Tensor]) -> None:
    """The thinker's prompt without codec embeddings, the voice, and the reply so far; not before its first row."""
    rows = torch.randn(PROMPT + 3, WIDTH)
    utterance.feed(handed(rows[:2], first=True))
    assert utterance.take() is None
    utterance.feed(handed(rows[2:PROMPT]))
    assert utterance.take() is None
    utterance.feed(handed(rows[PROMPT:]))
    chunk = utterance.take()
    assert chunk is not None
    assert list(chunk.prompt_token_ids) == [MASK] * PROMPT + [PAD, START]
    assert torch.equal(chunk.rows[:, :-1], torch.cat((rows[:PROMPT], embedded["start"][None], rows[PROMPT:])))
    assert chunk.rows[:, -1].tolist() == [0] * PROMPT + [1] * 4
    assert chunk.positions is not None
    assert chunk.positions.tolist() == [list(range(PROMPT))] * 3
    assert not chunk.last
    assert utterance.take() is None


def test_after_the_reply_come_its_end_and_padding(
    utterance: Qwen2_5Utterance, embedded: dict[str, torch.Tensor]
) -> None:
    rows = torch.randn(PROMPT + 4, WIDTH)
    utterance.feed(handed(rows[: PROMPT + 1], first=True))
    assert utterance.take() is not None
    utterance.feed(handed(rows[PROMPT + 1 : PROMPT + 3]))
    chunk = utterance.take()
    assert chunk is not None
    assert (len(chunk.rows), len(chunk.prompt_token_ids), chunk.positions, chunk.last) == (2, 0, None, False)
    utterance.feed(handed(rows[PROMPT + 3 :]))
    utterance.end()
    chunk = utterance.take()
    assert chunk is not None
    assert torch.equal(
        chunk.rows[:, :-1], torch.cat((rows[PROMPT + 3 :], embedded["end"][None], embedded["pad"][None]))
    )
    assert chunk.rows[:, -1].tolist() == [1, 1, 1]
    assert chunk.last
    assert utterance.take() is None


@pytest.mark.parametrize("late", [False, True])
def test_an_end_that_comes_late_or_with_the_first_chunk(utterance: Qwen2_5Utterance, late: bool) -> None:
    utterance.feed(handed(torch.randn(PROMPT + 1, WIDTH), first=True))
    counts = []
    if late:
        counts.append(len(chunk.rows) if (chunk := utterance.take()) else 0)
    utterance.end()
    counts.append(len(chunk.rows) if (chunk := utterance.take()) and chunk.last else 0)
    assert counts == ([PROMPT + 2, 2] if late else [PROMPT + 4])


def test_no_reply_is_no_chunk(utterance: Qwen2_5Utterance) -> None:
    utterance.feed(handed(torch.randn(PROMPT, WIDTH), first=True))
    utterance.end()
    assert utterance.take() is None


def test_rows_are_copied_and_keep_their_dtype(utterance: Qwen2_5Utterance) -> None:
    """What they were made of goes when the next ones are asked for."""
    data = bytearray(from_torch(torch.ones(PROMPT + 1, WIDTH, dtype=torch.bfloat16)).data)
    tensors = handed(torch.zeros(PROMPT + 1, WIDTH), first=True)
    utterance.feed(tensors | {"rows": Tensor("bfloat16", (PROMPT + 1, WIDTH), memoryview(data))})
    data[:] = bytes(len(data))
    chunk = utterance.take()
    assert chunk is not None
    assert chunk.rows.dtype == torch.bfloat16
    assert chunk.rows[0].tolist() == [1.0] * WIDTH + [0.0]


@pytest.mark.parametrize("broken", ["rows", "mrope_positions", "shape"])
def test_what_no_thinker_of_this_model_makes(utterance: Qwen2_5Utterance, broken: str) -> None:
    tensors = thought(PROMPT, 1)
    if broken == "shape":
        tensors["rows"] = from_torch(torch.zeros(PROMPT + 1, WIDTH + 1))
    else:
        del tensors[broken]
    with pytest.raises(EngineError, match="cannot read what the thinker made"):
        utterance.feed(tensors)


async def test_stop_ids_are_no_codes(utterance: Qwen2_5Utterance) -> None:
    codes = await utterance.codes([3, 5, END])
    assert codes is not None
    assert (codes.dtype, codes.tolist()) == (torch.int32, [3, 5])
    assert await utterance.codes([PAD]) is None


def test_a_model_that_has_no_talker(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_bytes())
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "spk_dict.pt").unlink()
    with pytest.raises(FileNotFoundError, match="spk_dict"):
        open_family(str(tmp_path))
    del config["talker_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no talker_config"):
        open_family(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match="'llama', of which no talker is known"):
        open_family(str(tmp_path))


def test_rows_of_a_checkpoint_in_parts(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights in safetensors"):
        read_rows(tmp_path, EMBEDDINGS, [0])
    (tmp_path / "model-00002-of-00002.safetensors").symlink_to(checkpoint / "model.safetensors")
    index = {"weight_map": {EMBEDDINGS: "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = load_file(checkpoint / "model.safetensors")[EMBEDDINGS]
    assert torch.equal(read_rows(tmp_path, EMBEDDINGS, [7, 3, 7]), weights[[7, 3, 7]])
    for directory in (tmp_path, checkpoint):
        with pytest.raises(ValueError, match="no tensor nothing"):
            read_rows(directory, "nothing", [0])


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6, dtype=torch.int32).view(2, 3).T, torch.randn(3, 2).bfloat16(), torch.zeros(0, 4), torch.tensor(7)],
)
def test_tensors_between_stages(tensor: torch.Tensor) -> None:
    assert torch.equal(to_torch(from_torch(tensor)), tensor)
    with pytest.raises(ValueError, match="bytes"):
        to_torch(Tensor("int32", (3,), memoryview(b"12345678")))
