"""multipart/form-data: parsed as it comes, within limits on the parts that hold before any of it has been read."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    ParserError,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from app.protocol.errors import ApiError
from app.routes.body import feed, media_type
from app.routes.state import settings

MAX_PARTS = 128
MAX_TEXT = 1 << 20
"""Bytes of a part that is a plain field; files, and data URLs in their place, may be as large as media."""


class Part(msgspec.Struct, frozen=True):
    """One part of a form: a field, or a file, which has a name or a type that is not text."""

    name: str
    is_file: bool
    data: bytes

    @property
    def text(self) -> str:
        """The content of a field.

        Raises:
            ApiError: 400, it is not UTF-8.
        """
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            raise ApiError(400, f"{self.name}: is not UTF-8.", param=self.name, code="invalid_value") from None


def require_form(request: Request[Any, Any, Any]) -> None:
    """
    Raises:
        ApiError: 415, the body is declared to be something else than a form.
    """
    if media_type(request) != "multipart/form-data":
        message = "The request needs the header 'Content-Type: multipart/form-data; boundary=...'."
        raise ApiError(415, message, code="unsupported_media_type")


async def read_form(request: Request[Any, Any, Any]) -> list[Part]:
    """The parts of the body, in their order.

    Raises:
        ApiError: 400, it is no form; 413, it has too many parts or one is too large; and what `body.feed` raises.
    """
    form = _Form(_boundary(request), settings(request.app).media.max_bytes)
    await feed(request, form.take)
    return form.close()


class _Form:
    def __init__(self, boundary: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[Part] = []
        self._segment: MultipartSegment | None = None
        self._pieces: list[bytes] = []
        try:
            self._parser = PushMultipartParser(
                boundary,
                max_segment_count=MAX_PARTS,
                max_segment_size=_as_data_url(max_bytes),
                header_charset="utf-8",
            )
        except MultipartError as error:
            raise _malformed(error) from None

    def take(self, piece: bytes) -> None:
        """The next piece of the body, however it was cut."""
        if not piece:
            return
        try:
            for event in self._parser.parse(piece):
                self._on_event(event)
        except ParserLimitReached:
            raise self._too_large() from None
        except MultipartError as error:
            raise _malformed(error) from None

    def close(self) -> list[Part]:
        """The parts, once the body has ended."""
        try:
            self._parser.close()
        except ParserError:
            message = "The form is not complete: it ends before its last boundary."
            raise ApiError(400, message, code="invalid_form") from None
        return self._parts

    def _on_event(self, event: Any) -> None:
        if isinstance(event, MultipartSegment):
            self._segment, self._pieces = event, []
            return
        segment = self._segment
        assert segment is not None, "the parser announces each part before its content"
        if event is None:
            self._parts.append(Part(segment.name or "", _is_file(segment), b"".join(self._pieces)))
            return
        self._pieces.append(event)
        if segment.bytes_received > self._limit(segment):
            raise self._too_large()

    def _limit(self, segment: MultipartSegment) -> int:
        if _is_file(segment):
            return self._max_bytes
        beginning = b"".join(piece[:5] for piece in self._pieces[:5])  # pieces may be single bytes
        return _as_data_url(self._max_bytes) if beginning.startswith(b"data:") else MAX_TEXT

    def _too_large(self) -> ApiError:
        if self._segment is None or len(self._parts) >= MAX_PARTS:
            message = f"The form has more than {MAX_PARTS} parts, or more headers than a part needs."
            return ApiError(413, message, code="form_too_large")
        name = self._segment.name or ""
        message = (
            f"{name}: is too large for a form; files have at most {self._max_bytes} bytes (--max-media-bytes), "
            f"other fields {MAX_TEXT}."
        )
        return ApiError(413, message, param=name, code="form_too_large")


def _boundary(request: Request[Any, Any, Any]) -> str:
    _, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = str(options.get("boundary", ""))
    if not boundary:
        message = "The header Content-Type: multipart/form-data names no boundary; HTTP libraries add it by themselves."
        raise ApiError(400, message, code="invalid_form")
    return boundary


def _is_file(segment: MultipartSegment) -> bool:
    return segment.filename is not None or not (segment.content_type or "text/plain").startswith("text/")


def _as_data_url(size: int) -> int:
    """Characters of so many bytes in base64, and room for the media type before them."""
    return size * 4 // 3 + 1024


def _malformed(error: MultipartError) -> ApiError:
    return ApiError(400, f"The request body is not valid multipart/form-data: {error}.", code="invalid_form")
