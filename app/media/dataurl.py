"""Data URLs (RFC 2397): the medium itself inside the request."""

from __future__ import annotations

import binascii
from urllib.parse import unquote_to_bytes

from app.media.errors import invalid, too_large


def split(url: str) -> tuple[str, bool, str]:
    """Media type in lower case (may be empty), whether the rest is base64, and the rest.

    Raises:
        MediaError: 400, there is no comma, so no data.
    """
    head, comma, payload = url[len("data:") :].partition(",")
    if not comma:
        raise invalid("the data URL has no comma between its media type and its data: data:image/png;base64,...")
    media_type, *parameters = (part.strip().lower() for part in head.split(";"))
    return media_type, "base64" in parameters, payload


def decode(url: str, max_bytes: int) -> tuple[str, bytes]:
    """Media type and content.

    Raises:
        MediaError: 400, it cannot be decoded or is empty; 413, it is larger than `max_bytes`.
    """
    media_type, is_base64, payload = split(url)
    if not payload:
        raise invalid("the data URL has no data after its comma")
    # Before decoding, so that the check costs no memory: 4 characters hold 3 bytes, a percent triplet holds 1.
    smallest = len(payload) // 4 * 3 - 2 if is_base64 else len(payload) // 3
    if smallest > max_bytes:
        raise too_large(f"the data URL holds more than {max_bytes} bytes (--max-media-bytes)")
    data = _from_base64(payload) if is_base64 else unquote_to_bytes(payload)
    if len(data) > max_bytes:
        raise too_large(f"the data URL holds {len(data)} bytes, more than {max_bytes} (--max-media-bytes)")
    return media_type, data


def _from_base64(payload: str) -> bytes:
    encoded = unquote_to_bytes(payload) if "%" in payload else payload
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError as error:  # binascii.Error, or characters beyond ASCII
        reason = str(error)
        raise invalid(f"the data URL is not valid base64 ({reason}); use the standard alphabet with padding") from error
