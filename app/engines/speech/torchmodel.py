"""What the families on transformers share: where the model is, and one call of it at a time, seeded and watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers

from app.engines.device import compute_device, is_out_of_memory, out_of_memory, release_memory, torch_dtype
from app.engines.speech.family import Samples, Step
from app.engines.speech.options import SpeechOptions


def load_model(cls: Any, directory: str | Path, options: SpeechOptions, *, small: bool = False) -> Any:
    """A model of a class of transformers, from a directory of this machine, on the stage's device.

    Raises:
        OSError: a file of it is missing or broken.
    """
    transformers.logging.disable_progress_bar()
    device = compute_device(options.device)
    dtype = torch_dtype(options.dtype, device, small=small)
    return cls.from_pretrained(directory, dtype=dtype, local_files_only=True).to(device).eval()


def companion(model: str, options: SpeechOptions, name: str) -> Path | None:
    """The directory of a second model that the family needs: the one of the option `vocoder`, or `name` in the model's.

    Raises:
        ValueError: the option names no directory.
    """
    if options.vocoder:
        path = Path(options.vocoder).expanduser()
        if not path.is_dir():
            raise ValueError(f"vocoder must be a directory of this machine; got {options.vocoder}")
        return path
    path = Path(model) / name
    return path if path.is_dir() else None


class Caller:
    """Calls a model for whoever speaks at the moment. One thread at a time: seeds and watched modules are shared."""

    def __init__(self, *watched: torch.nn.Module) -> None:
        """Each call of a module in `watched` is a step, and a place where a call that nobody wants is left."""
        self._step: Step | None = None
        for module in watched:
            module.register_forward_pre_hook(self._called)

    def _called(self, *_: Any) -> None:
        if self._step is not None:
            self._step()

    def call(self, call: Callable[[], torch.Tensor | None], seed: int, step: Step) -> Samples:
        """The waveform that `call` returns, of any shape with one channel; None is silence of no length.

        Raises:
            AbandonedError: `step` did.
            EngineError: 503, the device has too little memory.
        """
        self._step = step
        step()
        try:
            torch.manual_seed(seed)
            with torch.inference_mode():
                sound = call()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            release_memory()
            raise out_of_memory("sentence", "send shorter ones") from error
        finally:
            self._step = None
        if sound is None:
            return np.zeros(0, np.float32)
        samples: Samples = sound.reshape(-1).float().cpu().numpy()
        return samples


def given(sampling: msgspec.Struct) -> dict[str, Any]:
    """The parameters that somebody has set, as keyword arguments."""
    values: Mapping[str, Any] = msgspec.structs.asdict(sampling)
    return {name: value for name, value in values.items() if value is not None}
