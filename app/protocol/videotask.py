"""What an API worker asks a diffusion replica for videos with: the body of a Submit of the kind "video", in msgpack."""

from __future__ import annotations

import msgspec

from app.protocol.pictures import PictureTask


class VideoTask(PictureTask, kw_only=True, omit_defaults=True):
    """One video, asked for as a picture is, and how long: `images` is what it begins with, if anything.

    `seconds` at `fps` frames a second, or the number of `frames`; 0: the pipeline's own. What concerns files of
    pictures (`format`, `n`, `previews`, ...) has no meaning. The answer is one Video event, or, `streamed`, several.
    """

    seconds: float = 0.0
    frames: int = 0
    fps: float = 0.0
    streamed: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(VideoTask)


def encode_task(task: VideoTask) -> bytes:
    """The body of a Submit."""
    return _encoder.encode(task)


def decode_task(body: bytes) -> VideoTask:
    """The task in the body of a Submit.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(body)
