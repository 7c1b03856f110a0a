"""What an API worker asks a diffusion replica for: the body of a Submit of the kinds "image", in msgpack.

Everything that the routes can judge without the pipeline has been judged when a task is made; what only the pipeline
can judge (which parameters it has, which sizes it can draw) is judged in the replica before Accepted.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PictureFormat = Literal["png", "jpeg", "webp", "avif"]


class LoraChoice(msgspec.Struct, omit_defaults=True):
    """A LoRA adapter for one request: the `name` of one that is loaded, or a `path` below an allowed directory."""

    name: str = ""
    path: str = ""
    scale: float = 1.0


class PictureSource(msgspec.Struct, omit_defaults=True):
    """A picture that the client gave: its file as bytes, or a URL (http(s):, data:) that the replica fetches.

    `param` is the field that it came in, as the client knows it, for what is said of it.
    """

    data: bytes = b""
    url: str = ""
    param: str = "image"


class PictureTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One picture request. None and 0 mean: not given, the pipeline's own default or the server's holds.

    `n` pictures with the seeds seed, seed + 1, ...; `width` and `height` in pixels. `extra` are further arguments of
    the pipeline's call. `compression` (0..100) is the quality of JPEG, WebP and AVIF, and 100 minus the effort for PNG.
    `previews` pictures are sent while it is drawn, and with `progress` its steps. `base64`: Picture.data is in base64.
    """

    prompt: str = ""
    negative_prompt: str | None = None
    n: int = 1
    width: int = 0
    height: int = 0
    seed: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    guidance_scale_2: float | None = None
    strength: float | None = None
    flow_shift: float | None = None
    layers: int | None = None
    extra: dict[str, Any] = {}
    lora: list[LoraChoice] = []
    images: list[PictureSource] = []
    mask: PictureSource | None = None
    format: PictureFormat = "png"
    compression: int = 100
    transparent: bool = False
    previews: int = 0
    progress: bool = False
    base64: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PictureTask)


def encode_task(task: PictureTask) -> bytes:
    """The body of a Submit."""
    return _encoder.encode(task)


def decode_task(body: bytes) -> PictureTask:
    """The task in the body of a Submit.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(body)
