"""Rows of the flag table for speech stages: which voice, and how its model is run."""

from __future__ import annotations

from typing import Any

from app.engines.speech.detect import FAMILIES
from app.settings.flags import Flag
from app.settings.values import ValueKind


def _row(name: str, kind: ValueKind, help: str, **more: Any) -> Flag:
    target = f"engine.{name.replace('-', '_')}"
    return Flag(name=name, kind=kind, group="speech", target=target, kinds=("speech",), help=help, **more)


SPEECH_STAGE_FLAGS = (
    _row("family", "str", "Kind of the speech model, where its files do not show it.", choices=FAMILIES),
    _row("vocoder", "str", "Directory or hub id of the model that turns spectra into sound, for SpeechT5."),
    _row("default-voice", "str", "Voice of requests that name none. Default: the model's own."),
    _row(
        "speaker-embeddings",
        "json",
        "Further voices, for models that imitate embeddings: a .npy file by name, beside the model or absolute.",
        metavar="JSON",
    ),
    _row(
        "max-sentence-chars",
        "int",
        "Where text without the end of a sentence is cut, in characters. Default: what suits the model.",
        least=1,
    ),
)
