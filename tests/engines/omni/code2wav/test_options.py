"""The options of a vocoder's stage are judged before it starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.engines.omni.code2wav.engine import Code2WavEngine
from app.engines.omni.code2wav.options import read_options
from tests.engines.omni.code2wav.decoding import stage


def test_defaults_and_the_device_of_the_stage() -> None:
    options = read_options(stage(Path("m"), dtype="half", max_num_seqs=3, trust_remote_code=True))
    assert (options.device, options.dtype, options.max_num_seqs, options.seed) == ("cpu", "float16", 3, 0)


@pytest.mark.parametrize(
    ("engine_args", "says"),
    [
        ({"max_num_seq": 2}, "engine argument 'max_num_seq' is unknown to the code2wav engine; did you mean"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"codec_chunk_frames": -1}, "codec_chunk_frames"),
        ({"codec_chunk_frames": "25"}, "codec_chunk_frames"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"default_sampling_params": {"top_k": 1}}, "give them to the talker's stage"),
    ],
)
def test_what_cannot_be_said_of_any_model(engine_args: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Code2WavEngine(stage(Path("m"), **engine_args))


@pytest.mark.parametrize(
    ("engine_args", "says"),
    [
        ({"default_voice": "Etan"}, "default_voice: the model has no voice 'Etan'; did you mean 'Ethan'?"),
        ({"codec_chunk_frames": 25}, "codec_chunk_frames must be a multiple of 12 with this model; got 25"),
        ({"codec_left_context_frames": 12}, "codec_left_context_frames: 12 are too few; this model needs 24"),
        ({"codec_right_context_frames": 0}, "codec_right_context_frames: 0 are too few; this model needs 12"),
        (
            {"codec_chunk_frames": 24, "initial_codec_chunk_frames": 36},
            "initial_codec_chunk_frames: 36 are more than codec_chunk_frames, 24",
        ),
    ],
)
async def test_what_qwen2_5_cannot_have(qwen2_5: Path, engine_args: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        await Code2WavEngine(stage(qwen2_5, **engine_args)).start()


@pytest.mark.parametrize(
    ("engine_args", "says"),
    [
        ({"codec_left_context_frames": 4}, "codec_left_context_frames: 4 are too few; this model needs 11"),
        ({"codec_right_context_frames": 4}, "this model does not look ahead"),
    ],
)
async def test_what_qwen3_cannot_have(qwen3: Path, engine_args: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        await Code2WavEngine(stage(qwen3, **engine_args)).start()
