"""The talker of Qwen3-Omni: frames of 16 codes, 12.5 a second, of the thinker's words and of what it heard and saw."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from app.cluster.tensors import Tensor
from app.engines.omni.rowchannel import RowReceiver, Rows
from app.engines.omni.speakers import SAMPLE_RATE, qwen3_speakers
from app.engines.omni.talker.conditioning import WIDTH
from app.engines.omni.talker.family import Chunk
from app.engines.omni.talker.frames import ADDRESS, FRAMES, FrameRequest
from app.engines.omni.talker.qwen3_utterance import EXTRA, Conditioning, Marks
from app.protocol.speechtask import SpeechCard

ARCHITECTURE = "Qwen3OmniTalker"
_FRAMES_TIMEOUT_S = 10.0  # they are sent before what was sampled is; one that died in between sends them never
_SAMPLING = {"temperature": 0.9, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.05, "max_tokens": 4096}
"""Of transformers' generate, for the first codes; what the others are drawn with is fixed (predictor.py)."""


def talker_config(config: Any) -> Any:
    """The talker's text model out of the whole model's configuration, with what it needs of the rest; any other
    configuration as it is."""
    talker = getattr(config, "talker_config", None)
    if talker is None:  # vLLM tries a function of overrides with an empty configuration first
        return config
    text = copy.deepcopy(talker.text_config)
    text.architectures = [ARCHITECTURE]
    text.talker = talker
    text.own_rows = (config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id)
    # transformers' classes interleave, and have experts in every layer, whatever a configuration says.
    text.rope_parameters = {"mrope_section": [24, 20, 20], **text.rope_parameters, "mrope_interleaved": True}
    text.mlp_only_layers, text.decoder_sparse_step = [], 1
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None
    setattr(text, WIDTH, talker.thinker_hidden_size + EXTRA)
    return text


class Qwen3Talker:
    """Implements app.engines.omni.talker.family.TalkerFamily."""

    architecture = ARCHITECTURE
    sampling: Mapping[str, Any] = _SAMPLING
    engine_args: Mapping[str, Any] = {
        "worker_cls": "app.engines.omni.talker.qwen3_worker.FrameWorker",
        # A step needs the whole frame of the one before it, which is complete when that has ended.
        "async_scheduling": False,
    }

    def __init__(self, model: str) -> None:
        """Read the configuration.

        Raises:
            ValueError: something is missing that the talker needs.
            OSError: the configuration cannot be read.
        """
        config = _config_of(Path(model))
        talker = config.talker_config
        self._speakers = qwen3_speakers(Path(model), talker)
        voices = list(self._speakers)
        self.hf_overrides: Callable[[Any], Any] = talker_config
        self.stop_token_ids: Sequence[int] = [talker.codec_eos_token_id]
        self.card = SpeechCard(family="Qwen3-Omni", voices=voices, default_voice=voices[0], sample_rate=SAMPLE_RATE)
        self._width = talker.thinker_hidden_size
        self._marks = _marks_of(config)
        self._receiver: RowReceiver | None = None

    def open(self, scratch: str) -> None:
        """Listen for frames."""
        self._receiver = RowReceiver(scratch)
        os.environ[ADDRESS] = self._receiver.address

    def begin(self, request_id: str, voice: str) -> Qwen3Utterance:
        """A request's part."""
        assert self._receiver is not None
        conditioning = Conditioning(self._marks, self._width, self._speakers[voice])
        return Qwen3Utterance(conditioning, self._receiver, self.stop_token_ids)

    def close(self) -> None:
        """Listen no more."""
        if self._receiver is not None:
            self._receiver.close()


class Qwen3Utterance:
    """Implements app.engines.omni.talker.family.Utterance. Frames come from vLLM's worker, past vLLM."""

    def __init__(self, conditioning: Conditioning, receiver: RowReceiver, stop_token_ids: Sequence[int]) -> None:
        self._conditioning = conditioning
        self._receiver = receiver
        self._stops = frozenset(stop_token_ids)
        self._frames: deque[list[int]] = deque()
        self._came = asyncio.Event()
        self._key = receiver.add(self._on_frames)
        self.extra_args: dict[str, Any] = {
            FRAMES: msgspec.to_builtins(FrameRequest(self._key, seed=secrets.randbits(63)))
        }

    def _on_frames(self, rows: Rows) -> None:
        self._frames.extend(np.frombuffer(rows.data, rows.dtype).reshape(-1, rows.width).tolist())
        self._came.set()

    def feed(self, tensors: Mapping[str, Tensor]) -> None:
        """Take one handover.

        Raises:
            EngineError: it is not what the thinker of this checkpoint makes.
        """
        self._conditioning.feed(tensors)

    def end(self) -> None:
        """Nothing more comes."""
        self._conditioning.end()

    def take(self) -> Chunk | None:
        """The next chunk; None where none can be made yet, or none is left."""
        return self._conditioning.take()

    async def codes(self, token_ids: Sequence[int]) -> torch.Tensor | None:
        """int32 [n, groups]: the frames that begin with what was sampled, but for the id that ends it.

        Raises:
            TimeoutError: they have not come.
        """
        said = sum(token not in self._stops for token in token_ids)
        async with asyncio.timeout(_FRAMES_TIMEOUT_S):
            while len(self._frames) < said:
                self._came.clear()
                await self._came.wait()
        frames = [self._frames.popleft() for _ in range(said)]
        return torch.tensor(frames, dtype=torch.int32) if frames else None

    def close(self) -> None:
        """Its frames are wanted no more."""
        self._receiver.remove(self._key)


def _config_of(model: Path) -> Any:
    found = json.loads((model / "config.json").read_bytes())
    if not found.get("talker_config"):
        raise ValueError(f"{model} has no talker: its config.json has no talker_config")
    from transformers import Qwen3OmniMoeConfig

    return Qwen3OmniMoeConfig(**found)  # with what a file leaves to the class


def _marks_of(config: Any) -> Marks:
    talker = config.talker_config
    return Marks(
        im_start=config.im_start_token_id,
        user=config.user_token_id,
        assistant=config.assistant_token_id,
        senses=[getattr(config.thinker_config, f"{kind}_token_id") for kind in ("audio", "image", "video")],
        prelude=[talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id],
        codec_pad=talker.codec_pad_id,
        codec_bos=talker.codec_bos_id,
    )
