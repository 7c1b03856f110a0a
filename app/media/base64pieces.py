"""Base64 in pieces that are, joined, the base64 of the whole: each but the last is of whole groups of three bytes."""

from __future__ import annotations

import base64


class Base64Pieces:
    """Encodes one file as it is made."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes, *, last: bool = False) -> bytes:
        """The base64 of what has come and not been encoded yet, up to a border of three bytes unless it is the last."""
        data = self._rest + data
        end = len(data) if last else len(data) - len(data) % 3
        self._rest = data[end:]
        return base64.b64encode(data[:end])
