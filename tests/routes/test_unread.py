from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from app.routes import unread
from app.routes.unread import Upload


class Sender:
    """A client of an upload: what `receive` gives, and how often it was asked. It falls silent at the end."""

    def __init__(self, messages: Iterable[dict[str, Any]]) -> None:
        self._messages = iter(messages)
        self.asked = 0

    async def receive(self) -> Any:
        self.asked += 1
        for message in self._messages:
            return message
        return await asyncio.Event().wait()


def part(size: int, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": b" " * size, "more_body": more}


async def discard(*messages: dict[str, Any], read: int = 0) -> int:
    """How often a server is asked when the application has taken the first `read` messages."""
    sender = Sender(messages)
    upload = Upload(sender.receive)
    for _ in range(read):
        await upload.receive()
    async with asyncio.timeout(10):
        await upload.discard_rest()
    return sender.asked


@pytest.mark.parametrize("read", [0, 1, 2])
async def test_the_rest_is_read_to_its_end(read: int) -> None:
    assert await discard(part(5), part(5), part(5, more=False), read=read) == 3


async def test_a_body_that_was_read_is_not_asked_for_again() -> None:
    assert await discard(part(5), part(5, more=False), read=2) == 2


async def test_a_client_that_has_left_is_not_waited_for() -> None:
    assert await discard({"type": "http.disconnect"}, read=1) == 1
    assert await discard(part(5), {"type": "http.disconnect"}) == 2


async def test_no_more_than_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MOST_BYTES", 100)
    assert await discard(*[part(30)] * 10) == 4


async def test_a_client_that_stops_sending_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MOST_S", 0.05)
    assert await discard(part(5)) == 2
