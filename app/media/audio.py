"""What an audio file's header says, before anything is decoded."""

from __future__ import annotations

from io import BytesIO

import soundfile

from app.media.errors import too_large


def check_seconds(data: bytes, max_seconds: float) -> None:
    """Refuse audio whose header claims more than `max_seconds`.

    A container that libsndfile does not know passes: its decoder counts what it decodes.

    Raises:
        MediaError: 413, it is longer.
    """
    try:
        info = soundfile.info(BytesIO(data))
    except soundfile.LibsndfileError:
        return
    if info.duration > max_seconds:
        raise too_large(f"the audio lasts {info.duration:.1f} s, longer than {max_seconds:g} s (--max-media-seconds)")
