"""Data URLs: both encodings, and everything that is wrong with them."""

from __future__ import annotations

import base64

import pytest

from app.media.dataurl import decode
from app.media.errors import MediaError


@pytest.mark.parametrize(
    ("url", "media_type", "data"),
    [
        ("data:image/png;base64,aGVsbG8=", "image/png", b"hello"),
        ("DATA:Image/PNG;Base64,aGVsbG8=", "image/png", b"hello"),
        ("data:text/plain;charset=utf-8;base64,aGVsbG8=", "text/plain", b"hello"),
        ("data:;base64,aGVsbG8%3D", "", b"hello"),
        ("data:text/plain,a%20b%00", "text/plain", b"a b\0"),
        ("data:,a,b", "", b"a,b"),
    ],
)
def test_decodes(url: str, media_type: str, data: bytes) -> None:
    assert decode(url, 100) == (media_type, data)


@pytest.mark.parametrize(
    "url",
    [
        "data:",
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png;base64,aGVsbG8",
        "data:image/png;base64,aGVs bG8=",
        "data:image/png;base64,aGVs\nbG8=",
        "data:image/png;base64,a-_sbG8=",
        "data:image/png;base64,aGVsbG8=aGVs",
        "data:image/png;base64,äöü=",
        "data:image/png;base64,=",
    ],
)
def test_refuses_malformed(url: str) -> None:
    with pytest.raises(MediaError) as caught:
        decode(url, 100)
    assert (caught.value.failed.status, caught.value.failed.code) == (400, "invalid_media")


@pytest.mark.parametrize("size", [0, 1, 2])
def test_the_limit_is_exact(size: int) -> None:
    for scheme, body in (
        ("data:;base64,", lambda count: base64.b64encode(b"x" * count).decode()),
        ("data:,", lambda count: "x" * count),
        ("data:,", lambda count: "%00" * count),
    ):
        assert len(decode(scheme + body(99 + size), 99 + size)[1]) == 99 + size
        with pytest.raises(MediaError) as caught:
            decode(scheme + body(100 + size), 99 + size)
        assert (caught.value.failed.status, caught.value.failed.code) == (413, "media_too_large")
