"""A loaded vocoder that answers requests: from the body of a task and a talker's codec frames to a sound file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from app.cluster.messages import Accepted, Failed, Load
from app.engines.base import EngineError, Request
from app.engines.omni.code2wav.answer import Answer
from app.engines.omni.code2wav.batches import Batches
from app.engines.omni.code2wav.family import Vocoder
from app.engines.omni.code2wav.options import Code2WavOptions
from app.engines.refusal import refuse
from app.engines.speech.judge import manner_of, with_default_voice
from app.protocol.speechtask import SpeechTask, decode_task
from app.settings.inspection import model_type
from app.settings.schema import StageConfig

KIND = "code2wav"
FAMILIES = {"qwen2_5_omni": "qwen2_5", "qwen3_omni_moe": "qwen3"}
"""The module of this package for a model_type, with `load(directory, options)`."""


class _NoSampling(msgspec.Struct):
    """A vocoder samples nothing; what a task says of sampling is meant for the talker."""


class Service:
    """Takes tasks on the event loop and hands their frames to the engine's thread."""

    def __init__(self, vocoder: Vocoder[Any], options: Code2WavOptions, patience_s: float) -> None:
        self.card = with_default_voice(vocoder.card, options.default_voice)
        self._vocoder = vocoder
        self._seed = options.seed
        self._patience_s = patience_s
        self._batches = Batches(vocoder, options.max_num_seqs)

    async def answer(self, request: Request) -> None:
        """Serve one "code2wav" request to its end; cancelling it ends its sound at the model's next step.

        Raises:
            EngineError: it is refused or failed.
        """
        if request.kind != KIND:
            raise EngineError(Failed(400, f"a vocoder does not serve {request.kind!r}", "invalid_request_error"))
        try:
            task = decode_task(request.body)
        except msgspec.DecodeError as error:
            refuse(f"the task is malformed: {error}", None)
        voice = self._voice(task)
        seed = self._seed if task.seed is None else task.seed
        decoding = self._vocoder.begin(voice, seed, task.streamed)
        answer = Answer(request, task, decoding, self._vocoder, self._batches, self._patience_s)
        request.emit(Accepted())
        await answer.deliver()

    def _voice(self, task: SpeechTask) -> str:
        """Also judges the rest of the task, but for what is the talker's: its language and its sampling parameters."""
        mine = msgspec.structs.replace(task, language="", extra={})
        return manner_of(mine, self.card, _NoSampling, {}).voice

    def load(self) -> Load:
        """Requests being decoded, and those whose next piece waits for its turn.

        Those that wait for frames, or for their client to read, are neither: nothing can be expected of them.
        """
        return Load(self._batches.running, self._batches.waiting, self._batches.steps)

    def abandon(self) -> None:
        """Cancel what is being decoded, and what waits for that."""
        self._batches.abandon()

    def close(self) -> None:
        """End the thread; waits for its current step."""
        self._batches.close()


def open_service(stage: StageConfig, options: Code2WavOptions) -> Service:
    """Load the stage's model.

    Raises:
        ValueError: the model is of no known family, lacks something, or an option cannot be had with it.
        OSError: a file of the model is missing or broken.
    """
    directory = Path(stage.model)
    if (found := model_type(directory)) not in FAMILIES:
        raise ValueError(f"{directory} is of the type {found!r}, of which no vocoder is known")
    module = importlib.import_module(f"app.engines.omni.code2wav.{FAMILIES[found]}")
    load: Callable[[Path, Code2WavOptions], Vocoder[Any]] = module.load
    return Service(load(directory, options), options, stage.input_timeout_s)
