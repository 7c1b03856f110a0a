"""The engine arguments of a vocoder stage, typed. No torch: options are read before anything heavy is imported."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.engines.arguments import read_arguments
from app.settings.schema import StageConfig

Count = Annotated[int, msgspec.Meta(ge=0)]


class Code2WavOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be said about a vocoder stage.

    `dtype` is auto (float32, as vocoders are small and lose by less), bfloat16, float16 or float32; `device` a torch
    device, "" for the machine's accelerator, or its CPU if it has none. `revision` and `download_dir` are what the
    model was downloaded from and to; `trust_remote_code` is a permission that no vocoder needs. `max_num_seqs`:
    requests that are decoded in one call. `seed`: of the noise that sound is made of, for requests without their own.
    `default_voice` "": the model's choice.

    A stream's first piece is made of `initial_codec_chunk_frames` codec frames, and each further one of as many as all
    before it, up to `codec_chunk_frames`; `codec_left_context_frames` before a piece are computed again with it. 0:
    what suits the model. `codec_right_context_frames`: frames after a piece that are looked at, for models that look
    ahead; none: what suits the model. `default_sampling_params`: there are none.
    """

    dtype: str = "auto"
    device: str = ""
    revision: str = ""
    download_dir: str = ""
    trust_remote_code: bool = False
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1)] = 8
    seed: int = 0
    default_voice: str = ""
    initial_codec_chunk_frames: Count = 0
    codec_chunk_frames: Count = 0
    codec_left_context_frames: Count = 0
    codec_right_context_frames: Count | None = None
    default_sampling_params: dict[str, Any] = {}


def read_options(stage: StageConfig) -> Code2WavOptions:
    """The stage's engine arguments, checked.

    Raises:
        ValueError: an argument is unknown or has a value that cannot be; the message names stage and argument.
    """
    where = f"stage {stage.stage_id} ({stage.name})"
    options = read_arguments(stage, Code2WavOptions, "code2wav")
    if options.default_sampling_params:
        raise ValueError(f"{where}: default_sampling_params: a vocoder has none; give them to the talker's stage")
    return options
