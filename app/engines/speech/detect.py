"""Which family a speech model belongs to, told by its files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.engines.speech.options import SpeechOptions
from app.settings.inspection import model_type
from app.settings.problems import did_you_mean

if TYPE_CHECKING:
    from app.engines.speech.family import Synthesizer

FAMILIES = ("hibari", "vits", "speecht5", "bark", "csm", "dia")
"""Each a module of this package with `load(model, options)`; all but the first are `model_type`s of transformers."""

DEMO = ("demo", "hibari")
"""Names of the voice that comes in the wheel hibari-tts, in the place of a directory."""


def find_family(model: str, named: str = "") -> str:
    """The family of the model at `model`, a directory of this machine; `named` is what the stage says of it.

    Raises:
        ValueError: it is of no known family, or the directory holds no model.
    """
    if named:
        if named not in FAMILIES:
            raise ValueError(
                f"family must be one of {', '.join(FAMILIES)}; got {named!r}{did_you_mean(named, FAMILIES)}"
            )
        return named
    if model in DEMO:
        return "hibari"
    if (found := model_type(Path(model))) not in FAMILIES:
        raise ValueError(f"no speech family has the model_type {found!r}; known are {', '.join(FAMILIES)}")
    return found


def load_family(model: str, options: SpeechOptions) -> Synthesizer:
    """The model, loaded. Imports what its family needs.

    Raises:
        ValueError: it is of no known family, or lacks something; the message says what to do.
        OSError: a file of the model is missing or broken, in the words of its library.
    """
    module = importlib.import_module(f"app.engines.speech.{find_family(model, options.family)}")
    load: Callable[[str, SpeechOptions], Synthesizer] = module.load
    return load(model, options)
