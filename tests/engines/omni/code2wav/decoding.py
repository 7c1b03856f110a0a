"""A vocoder's engine asked directly, and the same model of transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from app.cluster.tensors import Tensor
from app.engines.omni.code2wav.engine import Code2WavEngine
from app.engines.omni.code2wav.family import Codes, Vocoder
from app.engines.speech.family import Samples
from app.protocol.speechtask import SpeechTask
from app.settings.schema import StageConfig
from tests.engines.speech.asking import Asked
from tests.tiny_omni import CODES, SPEAKERS

GROUPS = 4
"""Codes in a frame of the tiny Qwen3-Omni."""


class Fed(Asked):
    """A request that is fed codes."""

    def __init__(self, task: SpeechTask) -> None:
        super().__init__(task)
        self.kind = "code2wav"
        self._tensors: asyncio.Queue[dict[str, Tensor] | None] = asyncio.Queue()

    def feed(self, codes: Codes | None) -> None:
        """None: there are no more."""
        tensor = None if codes is None else Tensor("int32", codes.shape, memoryview(codes.tobytes()))
        self.feed_tensors(None if tensor is None else {"codes": tensor})

    def feed_tensors(self, tensors: dict[str, Tensor] | None) -> None:
        self._tensors.put_nowait(tensors)

    async def next_tensors(self) -> dict[str, Tensor] | None:
        return await self._tensors.get()


def task(**fields: Any) -> SpeechTask:
    """One that is answered with bare samples; seed 7."""
    return SpeechTask(**{"format": "pcm", "seed": 7} | fields)


def some_codes(frames: int, *shape: int, seed: int = 0) -> Codes:
    """Random frames of the tiny checkpoints: (frames,), or (frames, GROUPS)."""
    return np.random.default_rng(seed).integers(0, CODES, (frames, *shape), np.int32)


def stage(model: Path, **engine_args: Any) -> StageConfig:
    """On the CPU; input_timeout_s and default_sampling_params are the stage's own, all else engine arguments."""
    own = {
        name: engine_args.pop(name) for name in ("default_sampling_params", "input_timeout_s") if name in engine_args
    }
    return StageConfig(
        stage_id=2, name="code2wav", kind="generation", model=str(model), devices="cpu", engine_args=engine_args, **own
    )


@asynccontextmanager
async def started(model: Path, **engine_args: Any) -> AsyncIterator[Code2WavEngine]:
    engine = Code2WavEngine(stage(model, **engine_args))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def ask(engine: Code2WavEngine, asked_task: SpeechTask, codes: Codes, each: int = 0) -> Fed:
    """The request, answered to its end; its codes come all at once, or so many frames at a time."""
    fed = Fed(asked_task)
    for start in range(0, len(codes), each or len(codes) or 1):
        fed.feed(codes[start : start + (each or len(codes))])
    fed.feed(None)
    await asyncio.wait_for(engine.run(fed), 120)
    return fed


async def until(condition: Callable[[], object]) -> None:
    """Wait for it, for ten seconds at most."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about within ten seconds")


def decoded(vocoder: Vocoder[Any], utterances: Sequence[Codes], *, streamed: bool) -> list[list[Samples]]:
    """The pieces of each utterance, all of them in one batch; their seeds are 7, 8, 9 and so on."""
    decodings = [vocoder.begin(vocoder.card.default_voice, 7 + number, streamed) for number in range(len(utterances))]
    for decoding, codes in zip(decodings, utterances, strict=True):
        decoding.push(codes)
        decoding.finish()
    pieces: list[list[Samples]] = [[] for _ in utterances]
    while ready := [number for number, decoding in enumerate(decodings) if decoding.ready]:
        with torch.inference_mode():
            sounds = vocoder.decode([decodings[number] for number in ready], lambda: None)
        for number, sound in zip(ready, sounds, strict=True):
            pieces[number] += [sound] if len(sound) else []
    return pieces


@cache
def _stock(cls: Any, directory: Path) -> Any:
    return cls.from_pretrained(directory, dtype=torch.float32).eval()


def qwen2_5_sound(directory: Path, codes: Codes, seed: int = 7) -> NDArray[np.float32]:
    """What transformers makes of the codes in the voice of SPEAKERS[0]."""
    model = _stock(transformers.Qwen2_5OmniForConditionalGeneration, directory)
    speaker = model.speaker_map[SPEAKERS[0]]
    torch.manual_seed(seed)
    with torch.no_grad():
        sound = model.token2wav(
            torch.from_numpy(codes)[None].long(), conditioning=speaker["cond"], reference_mel=speaker["ref_mel"]
        )
    samples: NDArray[np.float32] = sound.reshape(-1).numpy()
    return samples


def qwen3_sound(directory: Path, codes: Codes) -> NDArray[np.float32]:
    """What transformers makes of the codes in one pass."""
    model = _stock(transformers.Qwen3OmniMoeForConditionalGeneration, directory)
    with torch.no_grad():
        sound = model.code2wav(torch.from_numpy(codes).long().T[None])
    samples: NDArray[np.float32] = sound.reshape(-1).numpy()
    return samples
