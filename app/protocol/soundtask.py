"""What an API worker asks a diffusion replica for sound with: the body of a Submit of the kind "sound", in msgpack.

What the routes can judge without the pipeline has been judged when a task is made; what only the pipeline can judge
(how long a sound it makes, which parameters it has) is judged in the replica before Accepted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.protocol.speechtask import SpeechFormat


class SoundTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One sound for a prompt. None and 0 mean: not given, the pipeline's own default or the server's holds.

    `seconds` is how long the sound is; `start` the second at which it begins in the piece that the model imagines.
    `sample_rate` in Hz, 0 for the pipeline's own. `extra` are further arguments of the pipeline's call. With `progress`
    its steps are told. `base64`: Audio.data comes in base64. The answer is one Audio event, of choice 0.
    """

    prompt: str = ""
    negative_prompt: str | None = None
    seconds: float | None = None
    start: float | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    format: SpeechFormat = "wav"
    sample_rate: int = 0
    extra: dict[str, Any] = {}
    progress: bool = False
    base64: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SoundTask)


def encode_task(task: SoundTask) -> bytes:
    """The body of a Submit."""
    return _encoder.encode(task)


def decode_task(body: bytes) -> SoundTask:
    """The task in the body of a Submit.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(body)
