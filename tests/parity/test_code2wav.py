"""Vocoders sound as transformers' do: whole, in pieces, and whoever else is decoded in the same call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.engines.omni.code2wav import qwen2_5, qwen3
from app.engines.omni.code2wav.options import Code2WavOptions
from tests.engines.omni.code2wav.decoding import GROUPS, decoded, qwen2_5_sound, qwen3_sound, some_codes
from tests.tiny_omni import build

LENGTHS = (151, 1, 12, 13, 24, 36, 37, 100)
"""In codec frames: less than a block, blocks, a little more, and several pieces of a stream."""


@pytest.fixture(scope="module")
def qwen2_5_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen2_5_omni", tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def qwen3_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3_omni_moe", tmp_path_factory.mktemp("omni"))


def test_qwen2_5_whole(qwen2_5_files: Path) -> None:
    utterances = [some_codes(length, seed=length) for length in LENGTHS]
    vocoder = qwen2_5.load(qwen2_5_files, Code2WavOptions(device="cpu"))
    together = decoded(vocoder, utterances, streamed=False)
    for number, (codes, pieces) in enumerate(zip(utterances, together, strict=True)):
        expected = qwen2_5_sound(qwen2_5_files, codes, seed=7 + number)
        assert (len(pieces), expected.shape) == (1, (480 * len(codes),))
        np.testing.assert_allclose(pieces[0], expected, atol=2e-5)
        assert np.abs(expected).max() > 0.1
    others = qwen2_5_sound(qwen2_5_files, utterances[0][::-1].copy())
    assert np.abs(others - qwen2_5_sound(qwen2_5_files, utterances[0])).max() > 0.1  # it tells codes apart


def test_qwen2_5_streamed(qwen2_5_files: Path) -> None:
    """With the default of two blocks ahead; what is behind a piece is known exactly."""
    utterances = [some_codes(length, seed=length) for length in LENGTHS]
    vocoder = qwen2_5.load(qwen2_5_files, Code2WavOptions(device="cpu"))
    together = decoded(vocoder, utterances, streamed=True)
    assert [len(piece) // 480 for piece in together[0]] == [12, 12, 24, 48, 55]
    for number, (codes, pieces) in enumerate(zip(utterances, together, strict=True)):
        expected = qwen2_5_sound(qwen2_5_files, codes, seed=7 + number)
        np.testing.assert_allclose(np.concatenate(pieces), expected, atol=2e-4)


def test_qwen2_5_looks_ahead_as_far_as_it_is_told(qwen2_5_files: Path) -> None:
    """Each block ahead brings a stream nearer to the whole."""
    codes = some_codes(120)
    expected = qwen2_5_sound(qwen2_5_files, codes)
    far = []
    for ahead in (12, 24, 36):
        vocoder = qwen2_5.load(qwen2_5_files, Code2WavOptions(device="cpu", codec_right_context_frames=ahead))
        far.append(np.abs(np.concatenate(decoded(vocoder, [codes], streamed=True)[0]) - expected).max())
    assert far[0] > 5 * far[1]
    assert far[1] > 5 * far[2] or far[2] < 1e-5


@pytest.mark.parametrize("streamed", [False, True])
def test_qwen3(qwen3_files: Path, streamed: bool) -> None:
    """Pieces join without a seam: they are one pass's, though only a few frames are decoded again."""
    utterances = [some_codes(length, GROUPS, seed=length) for length in LENGTHS]
    vocoder = qwen3.load(qwen3_files, Code2WavOptions(device="cpu"))
    together = decoded(vocoder, utterances, streamed=streamed)
    if streamed:
        assert [-(-len(piece) // 1920) for piece in together[-1]] == [4, 4, 8, 16, 25, 25, 18]
    for codes, pieces in zip(utterances, together, strict=True):
        expected = qwen3_sound(qwen3_files, codes)
        np.testing.assert_allclose(np.concatenate(pieces), expected, atol=1e-4)
        assert np.abs(expected).max() > 0.05


def test_qwen3_ends_a_little_before_its_last_frame(qwen3_files: Path) -> None:
    """As transformers' does in one pass: its convolutions look ahead by 555 samples."""
    vocoder = qwen3.load(qwen3_files, Code2WavOptions(device="cpu"))
    (pieces,) = decoded(vocoder, [some_codes(30, GROUPS)], streamed=True)
    assert sum(map(len, pieces)) == 30 * 1920 - 555
