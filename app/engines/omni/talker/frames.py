"""The frames of codes that each request of a Qwen3-Omni talker has made so far, kept in vLLM's worker.

A talker hears at each position the whole frame before it, of which vLLM knows the first code only. So the rest is kept
here, by position: a request that vLLM has preempted computes them all again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import torch

FRAMES = "omni_frames"
"""The key in SamplingParams.extra_args of a FrameRequest, as a dict."""
ADDRESS = "APP_TALKER_FRAMES"
"""The environment variable that tells the worker where the replica listens for frames."""
_SALT = 0x5DEECE66D  # vLLM draws the first codes from the request's seed: the same numbers must not choose the others


class FrameRequest(msgspec.Struct, frozen=True):
    """What the worker has to know of a request: `key` in the channel to the replica; and a `seed` for one that has none
    of its own, as every GPU that a model is split over must choose the same codes."""

    key: int
    seed: int


class Voice:
    """One request: its key in the channel, the position of its first frame, and the randomness of residual codes (None:
    the likeliest)."""

    def __init__(self, key: int, first: int, generator: torch.Generator | None) -> None:
        self.key = key
        self.first = first
        self.generator = generator
        self.frames: list[list[int]] = []


class Frames:
    """What the worker knows between two steps. `device`: where its generators draw."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._voices: dict[str, Voice] = {}
        self._spans: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._voices)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._voices

    def begin_step(self, scheduled: Any) -> None:
        """Read vLLM's SchedulerOutput: who has ended, who is new, and which positions of whom are computed now."""
        for request_id in scheduled.finished_req_ids:
            self._voices.pop(request_id, None)
        starts = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        for new in scheduled.scheduled_new_reqs:
            # A session's later chunks, and what was preempted, come as new ones too: with the id that is known.
            if new.req_id not in self._voices and (asked := _asked(new.sampling_params)) is not None:
                self._voices[new.req_id] = self._voice(new, asked)
        cached = scheduled.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        counts = scheduled.num_scheduled_tokens
        self._spans = {request_id: (starts[request_id], count) for request_id, count in counts.items()}

    def heard(self, request_ids: Iterable[str]) -> tuple[list[int], list[list[int]]]:
        """Which rows of a batch of `request_ids`, in this order, come after a frame, and those frames."""
        rows: list[int] = []
        frames: list[list[int]] = []
        offset = 0
        for request_id in request_ids:
            start, count = self._spans[request_id]
            if (voice := self._voices.get(request_id)) is not None:
                spoken = range(max(start, voice.first), start + count)
                rows.extend(offset + position - start for position in spoken)
                frames.extend(voice.frames[position - voice.first] for position in spoken)
            offset += count
        return rows, frames

    def voices(self, request_ids: Iterable[str]) -> list[Voice]:
        """Those of requests of this step."""
        return [self._voices[request_id] for request_id in request_ids]

    def add(self, request_ids: Sequence[str], frames: Sequence[list[int]]) -> None:
        """Keep the frames that this step's requests go on with."""
        for request_id, frame in zip(request_ids, frames, strict=True):
            start, count = self._spans[request_id]
            voice = self._voices[request_id]
            # What vLLM samples once more takes the place of what it has dropped.
            del voice.frames[start + count - voice.first :]
            voice.frames.append(frame)

    def _voice(self, new: Any, asked: FrameRequest) -> Voice:
        parameters = new.sampling_params
        generator = None
        if parameters.temperature > 0:
            seed = asked.seed if parameters.seed is None else parameters.seed
            generator = torch.Generator(self._device)
            generator.manual_seed((seed ^ _SALT) % 2**63)
        return Voice(asked.key, len(new.prompt_token_ids), generator)


def _asked(parameters: Any) -> FrameRequest | None:
    """None of requests that are not ours: vLLM tries its kernels with some."""
    asked = ((parameters and parameters.extra_args) or {}).get(FRAMES)
    return None if asked is None else msgspec.convert(asked, FrameRequest)
