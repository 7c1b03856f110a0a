"""Sound of /v1/realtime: mono samples of 16 bits, little endian, 24 kHz; base64 on the way."""

from __future__ import annotations

import base64
import binascii
import struct

from app.protocol.errors import ApiError

RATE = 24_000
"""Samples a second."""
BYTES_MS = RATE * 2 // 1000
"""Bytes a millisecond."""

_UNKNOWN = 0x7FFFFFFF
_HEADER = 54


def decode_samples(text: str, param: str) -> bytes:
    """The samples in base64 `text`.

    Raises:
        ApiError: 400 invalid_audio, it is no base64, or half a sample is missing.
    """
    try:
        samples = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid(param, f"is not base64 ({str(error)[:100]})") from None
    if len(samples) % 2:
        raise _invalid(param, f"has {len(samples)} bytes, and a sample has two: cut sound between samples")
    return samples


def _invalid(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}.", param=param, code="invalid_audio")


def wav_header(size: int = _UNKNOWN) -> bytes:
    """The head of a WAV file of `size` bytes of samples.

    Its 54 bytes are a multiple of three, so that the base64 of a file is that of its head and of its samples, joined.
    """
    riff = struct.pack("<4sI4s", b"RIFF", min(size + _HEADER - 8, 0xFFFFFFFF), b"WAVE")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return riff + form + struct.pack("<4sI2x4sI", b"JUNK", 2, b"data", size)


def wav_base64(samples: str) -> str:
    """The base64 of a WAV file, of that of its samples."""
    size = len(samples) // 4 * 3 - samples.count("=", -2)
    return base64.b64encode(wav_header(size)).decode() + samples
