"""What the header of a film says, before any of its pictures is decoded. Computes; replicas only."""

from __future__ import annotations

from io import BytesIO

import av
from av.error import FFmpegError

from app.media.errors import invalid

_CONTAINERS = "mov,matroska,asf,avi,mpegts,mpeg,mpegvideo,flv,ogg,gif,apng,ivf,m4v,h264,hevc,mxf,nut"
"""No others: FFmpeg reads descriptions of streams, too, and waits for what they announce."""


def film_size(data: bytes) -> tuple[int, int]:
    """Width and height of the pictures in pixels.

    Raises:
        MediaError: 400, it is no film, or there is no picture in it.
    """
    options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}
    try:
        with av.open(BytesIO(data), options=options, metadata_errors="replace") as container:
            if not container.streams.video:
                raise invalid("the video has no picture track")
            stream = container.streams.video[0]
            if not any(packet.size for packet in container.demux(stream)):
                raise invalid("the video has no frames")
            return stream.codec_context.width, stream.codec_context.height
    except (FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise invalid(f"the video is damaged, or of a kind that this server does not read ({reason})") from error
