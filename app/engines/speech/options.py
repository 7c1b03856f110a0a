"""The engine arguments of a speech stage, typed. No torch: options are read before anything heavy is imported."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.engines.arguments import read_arguments
from app.settings.schema import StageConfig


class SpeechOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be said about a speech stage.

    `family` is one of app.engines.speech.detect.FAMILIES, "" for the one that the model's files show. `dtype` is auto,
    bfloat16, float16 or float32; `device` a torch device, "" for the machine's accelerator, or its CPU if it has none.
    `revision` and `download_dir` are what the model was downloaded from and to. `max_num_seqs`: sentences spoken at the
    same time, 0 for what suits the family. `max_sentence_chars`: where a sentence without an end is cut, 0 for what
    suits the family. `vocoder` is the directory of a model that turns spectra or codes into sound, for families that
    need one. `speaker_embeddings` are voices by name: .npy files, absolute or relative to the model. `default_voice`
    "": the family's choice.
    `default_sampling_params` are the stage's values for requests without their own.
    """

    family: str = ""
    dtype: str = "auto"
    device: str = ""
    revision: str = ""
    download_dir: str = ""
    trust_remote_code: bool = False
    max_num_seqs: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_sentence_chars: Annotated[int, msgspec.Meta(ge=0)] = 0
    vocoder: str = ""
    speaker_embeddings: dict[str, str] = {}
    default_voice: str = ""
    default_sampling_params: dict[str, Any] = {}


def read_options(stage: StageConfig) -> SpeechOptions:
    """The stage's engine arguments and sampling defaults, checked.

    Raises:
        ValueError: an argument is unknown or has a value that cannot be; the message names stage and argument.
    """
    return read_arguments(stage, SpeechOptions, "speech")
