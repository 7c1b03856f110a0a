"""Voices of omni checkpoints: the one that transformers takes unasked is the first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app.engines.omni.speakers import qwen2_5_speakers, qwen3_speakers

SPEAKER = {"bos_token": 1, "cond": torch.zeros(1, 2), "ref_mel": torch.zeros(1, 3, 2)}


@pytest.mark.parametrize(
    ("names", "order"),
    [(["Ethan", "Chelsie", "Ann"], ["Chelsie", "Ethan", "Ann"]), (["Bob", "Ann"], ["Bob", "Ann"])],
)
def test_qwen2_5(names: list[str], order: list[str], tmp_path: Path) -> None:
    torch.save(dict.fromkeys(names, SPEAKER), tmp_path / "spk_dict.pt")
    assert list(qwen2_5_speakers(tmp_path)) == order


def test_a_file_that_is_none_or_holds_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="spk_dict"):
        qwen2_5_speakers(tmp_path)
    for content in (b"no archive", b""):
        (tmp_path / "spk_dict.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"spk_dict\.pt cannot be read"):
            qwen2_5_speakers(tmp_path)
    for speakers in ({}, {"Ethan": {"cond": torch.zeros(1, 32)}}):
        torch.save(speakers, tmp_path / "spk_dict.pt")
        with pytest.raises(ValueError, match="each with bos_token, cond and ref_mel"):
            qwen2_5_speakers(tmp_path)


def test_qwen3() -> None:
    assert list(qwen3_speakers(Path("m"), SimpleNamespace(speaker_id={"aiden": 1, "ethan": 2}))) == ["ethan", "aiden"]
    with pytest.raises(ValueError, match="m has no speaker"):
        qwen3_speakers(Path("m"), SimpleNamespace(speaker_id=None))
