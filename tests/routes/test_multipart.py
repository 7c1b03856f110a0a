"""Forms as they come over the wire: cut anywhere, too large, broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.routes.multipart import MAX_PARTS, MAX_TEXT
from tests.routes.drawing import asked, drawing
from tests.routes.serving import Served

URL = "/v1/images/edits"
KB = 1024
DECLARED = "multipart/form-data; boundary=b"


def part(name: str, content: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


PROMPT = part("prompt", "größer".encode())
IMAGE = part("image", b"\r\n--\x00\xff--b", '; filename="a.png"')
FORM = PROMPT + IMAGE + b"--b--\r\n"


async def send(
    content: bytes | AsyncIterator[bytes],
    served: Served | None = None,
    declared: str = "multipart/form-data; boundary=b",
) -> httpx.Response:
    served = served or drawing()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        return await client.post(URL, content=content, headers={"Content-Type": declared})


def error(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["param"]


async def in_pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
async def test_a_form_cut_anywhere(size: int) -> None:
    served = drawing()
    answer = await send(in_pieces(FORM, size), served)
    assert answer.status_code == 200, answer.text
    assert asked(served).prompt == "größer"
    assert asked(served).images[0].data == b"\r\n--\x00\xff--b"


@pytest.mark.parametrize(
    "declared", ["Multipart/Form-Data; boundary=b", 'multipart/form-data; charset=utf-8; boundary="b"']
)
async def test_ways_to_declare_it(declared: str) -> None:
    assert (await send(FORM, declared=declared)).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\r\n",
        b"--",
        b"no form at all",
        FORM[:-6],
        FORM[:20],
        PROMPT,
        b"--c--\r\n",
        PROMPT.replace(b"Content-Disposition", b"Content-Disposition\xff"),
        PROMPT.replace(b"form-data", b"attachment") + b"--b--",
        b"--b\r\nX: y\r\n\r\nx\r\n--b--\r\n",
        b"--bx\r\n" + FORM,
    ],
)
async def test_what_is_no_form(content: bytes) -> None:
    assert error(await send(content)) == (400, "invalid_form", None)


@pytest.mark.parametrize("declared", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data;"])
async def test_no_boundary(declared: str) -> None:
    assert error(await send(FORM, declared=declared)) == (400, "invalid_form", None)


async def test_another_multipart_is_no_form() -> None:
    assert error(await send(FORM, declared="multipart/mixed; boundary=b"))[:2] == (415, "unsupported_media_type")


async def test_too_many_parts() -> None:
    fields = b"".join(part(f"f{number}", b"") for number in range(MAX_PARTS + 1))
    assert error(await send(fields + FORM))[:2] == (413, "form_too_large")


async def test_a_field_that_is_too_large() -> None:
    answer = await send(part("prompt", b"x" * (MAX_TEXT + 1)) + IMAGE + b"--b--\r\n")
    assert error(answer) == (413, "form_too_large", "prompt")


def with_limit(limit: int) -> Served:
    served = drawing()
    served.settings.media.max_bytes = limit
    return served


@pytest.mark.parametrize(("size", "status"), [(2000, 200), (2001, 413)])
async def test_files_have_the_limit_of_media(size: int, status: int) -> None:
    content = PROMPT + part("image", b"x" * size, '; filename="a.png"') + b"--b--\r\n"
    answer = await send(content, with_limit(2000))
    assert answer.status_code == status
    if status == 413:
        assert error(answer) == (413, "form_too_large", "image")
        assert "--max-media-bytes" in answer.json()["error"]["message"]


async def test_a_data_url_may_be_as_large_as_its_medium() -> None:
    limit = 2 * MAX_TEXT
    served = with_limit(limit)
    url = b"data:image/png;base64," + b"A" * (limit * 4 // 3)
    assert (await send(PROMPT + part("image", url) + b"--b--\r\n", served)).status_code == 200
    assert error(await send(PROMPT + part("image", b"A" * len(url)) + b"--b--\r\n", served))[0] == 413


@pytest.mark.parametrize("length", range(1, 12))
async def test_a_data_url_is_known_by_its_beginning_wherever_that_is_cut(length: int) -> None:
    whole = PROMPT + part("image", b"data:image/png;base64," + b"A" * 2 * MAX_TEXT) + b"--b--\r\n"
    cut = whole.index(b"data:") + length

    async def pieces() -> AsyncIterator[bytes]:
        yield whole[:cut]
        yield whole[cut:]

    assert (await send(pieces(), with_limit(2 * MAX_TEXT))).status_code == 200


async def test_the_whole_body_has_a_limit() -> None:
    served = drawing(max_body_bytes=4 * KB)
    content = PROMPT + part("image", b"x" * 8 * KB, '; filename="a.png"') + b"--b--\r\n"
    assert error(await send(content, served))[:2] == (413, "request_too_large")
    assert error(await send(in_pieces(content, 500), served))[:2] == (413, "request_too_large")


async def test_a_form_that_stops_coming() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield FORM[:30]
        await asyncio.Event().wait()

    assert error(await send(stuck(), drawing(slow_client_timeout_s=0.05)))[:2] == (408, "slow_client")


async def test_a_huge_preamble_costs_no_memory_of_ours() -> None:
    """What comes before the first boundary is skipped, whatever it is."""
    answer = await send(in_pieces(b"x" * 100 * KB + b"\r\n" + FORM, 1000))
    assert answer.status_code == 200
