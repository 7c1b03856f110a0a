"""What kind of sound file some bytes are, by their beginning and never by a name. Standard library only."""

from __future__ import annotations


def sound_type(data: bytes) -> str | None:
    """The media type of a WAV, FLAC, Ogg, MP3, AAC (ADTS), MP4 or WebM file; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data[4:8] == b"ftyp":
        return "audio/mp4"
    for magic, kind in _BEGINNINGS:
        if data.startswith(magic):
            return kind
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # a frame of MPEG audio; layer 0 is ADTS
        return "audio/mpeg" if data[1] & 0x06 else "audio/aac"
    return None


_BEGINNINGS = (
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\x1a\x45\xdf\xa3", "audio/webm"),
)
