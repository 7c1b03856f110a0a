"""/v1/audio/generate: what a request may hold, and the task made of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.protocol.decoding import check_arguments
from app.protocol.errors import invalid, unsupported
from app.protocol.soundtask import SoundTask
from app.protocol.speechtask import SpeechFormat

MAX_PROMPT = 32_000
MAX_SEED = 2**32 - 1
MAX_SECONDS = 3600.0

REFUSED = {
    "n": "a request makes one sound; send several",
    "voice": "nobody speaks here; /v1/audio/speech has voices",
    "stream": "a sound is made as a whole",
    "lora": "no pipeline that makes sound takes adapters here",
    "extra_args": "its name here is extra_params",
    "extra_body": "clients put its members at the root of the body",
    "prompt": "its name on this route is input",
    "duration": "its name on this route is audio_length",
}
"""Fields that clients of vllm-omni's or of other routes send, and why they are refused."""


class SoundRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/audio/generate. Times in seconds. None: not given, the pipeline's default holds."""

    input: Annotated[str, msgspec.Meta(max_length=MAX_PROMPT)]
    model: str | None = None
    response_format: SpeechFormat | None = None
    sample_rate: Annotated[int, msgspec.Meta(ge=4000, le=192_000)] | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    audio_length: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    audio_start: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] | None = None
    negative_prompt: Annotated[str, msgspec.Meta(max_length=MAX_PROMPT)] | None = None
    guidance_scale: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None
    extra_params: dict[str, Any] | None = None
    user: str | None = None

    @property
    def format(self) -> SpeechFormat:
        """The format of the file."""
        return self.response_format or "wav"

    def task(self) -> SoundTask:
        """The task for a replica.

        Raises:
            ApiError: 400, a value, or two that do not go together; `param` is the field.
        """
        if not self.input.strip():
            raise invalid("input", "must not be empty")
        if self.stream_format == "sse":
            raise unsupported("stream_format", "a sound is made as a whole; ask for audio")
        if self.speed not in (None, 1):
            raise unsupported("speed", "no pipeline that makes sound has one")
        if self.audio_start is not None and self.audio_length is None:
            raise invalid("audio_start", "is where a sound of audio_length begins, which is not given")
        extra = dict(self.extra_params or {})
        check_arguments(extra, "extra_params")
        return SoundTask(
            prompt=self.input,
            negative_prompt=self.negative_prompt,
            seconds=self.audio_length,
            start=self.audio_start,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            seed=self.seed,
            format=self.format,
            sample_rate=self.sample_rate or 0,
            extra=extra,
        )
