"""Answers that MediaFetcher cuts off, gives up on or cannot read."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.media.loading import TOO_LARGE, UNAVAILABLE, fetcher, refusal, verdict
from tests.media.web import Web, moved, ok, serving


async def test_an_announced_length_over_the_limit_is_not_read(web: Web) -> None:
    """The body never comes: only the announcement can have decided."""
    web.pages["/a"] = ok(b"", length=10_000_000_000)
    assert verdict(await refusal(fetcher(), web.url("/a"))) == TOO_LARGE


async def test_an_endless_body_is_cut_off(web: Web) -> None:
    sent = 0
    cut_off = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while sent < 1 << 30:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()
                sent += 0x10000
        finally:
            cut_off.set()

    web.pages["/a"] = endless
    assert verdict(await refusal(fetcher(), web.url("/a"))) == TOO_LARGE
    await asyncio.wait_for(cut_off.wait(), timeout=10)
    assert sent < 1 << 26


async def test_a_slow_body_ends_with_the_time(web: Web) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n")
        for _ in range(900):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)

    web.pages["/a"] = drip
    started = time.monotonic()
    error = await refusal(fetcher(timeout_s=0.5), web.url("/a"))
    assert verdict(error) == UNAVAILABLE
    assert "--media-timeout" in error.failed.message
    assert time.monotonic() - started < 30


async def test_the_time_covers_all_redirects_together(web: Web) -> None:
    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(moved("/1"))
        await writer.drain()

    web.pages["/1"] = late
    error = await refusal(fetcher(timeout_s=0.5, max_redirects=20), web.url("/1"))
    assert "--media-timeout" in error.failed.message
    assert len(web.requests) < 5


@pytest.mark.parametrize(
    "page",
    [
        ok(b"short", length=900),
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\n\r\nhello",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        ok(b"\x1f\x8b bomb", "content-encoding: gzip"),
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 6\r\n\r\nsecret",
        b"HTTP/1.1 206 Partial Content\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_answers_that_are_no_medium(web: Web, page: bytes) -> None:
    web.pages["/a"] = page
    error = await refusal(fetcher(), web.url("/a"))
    assert verdict(error) == UNAVAILABLE
    assert "secret" not in error.failed.message


async def test_a_closed_port(web: Web) -> None:
    async with serving() as gone:
        url = gone.url("/a")
    assert verdict(await refusal(fetcher(), url)) == UNAVAILABLE
