"""The text of a request is read while it is being spoken."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from app.engines.base import EngineError
from app.engines.speech.script import sentences
from app.protocol.speechtask import SpeechTask
from tests.engines.speech.asking import Asked, task


async def all_of(asked: Asked, asked_task: SpeechTask, patience_s: float = 30.0) -> list[str]:
    return [sentence async for sentence in sentences(asked, asked_task, 400, patience_s)]


async def test_a_text_that_is_there_takes_no_input() -> None:
    whole = task("One. Two.")
    assert await all_of(Asked(whole), whole) == ["One. ", "Two."]


async def test_sentences_come_before_the_text_has_ended() -> None:
    begun = task("Hello", appended=True)
    asked = Asked(begun)
    async with aclosing(sentences(asked, begun, 400, 30)) as script:
        for piece in (" there. ", "How are", " you? I"):
            asked.append(piece)
        assert await anext(script) == "Hello there. "
        assert await anext(script) == "How are you? "
        asked.append(" am fine")
        asked.append(None)
        assert [sentence async for sentence in script] == ["I am fine"]


async def test_letters_that_come_in_halves_are_put_together() -> None:
    begun = task("", appended=True)
    asked = Asked(begun)
    for byte in "Größe 你好。".encode():
        asked.append(bytes([byte]))
    asked.append(None)
    assert await all_of(asked, begun) == ["Größe 你好。"]


@pytest.mark.parametrize("broken", [b"\xff", b"\xe4"])
async def test_what_is_no_utf8_is_refused(broken: bytes) -> None:
    begun = task("", appended=True)
    asked = Asked(begun)
    asked.append(broken)
    asked.append(None)
    with pytest.raises(EngineError, match="UTF-8") as caught:
        await all_of(asked, begun)
    assert caught.value.failed.status == 400


async def test_input_that_stays_away_ends_the_request_after_what_has_been_said() -> None:
    begun = task("", appended=True)
    asked = Asked(begun)
    asked.append("First. Second")
    async with aclosing(sentences(asked, begun, 400, 0.05)) as script:
        assert await anext(script) == "First. "
        with pytest.raises(EngineError, match=r"no further text came for 0\.05 s") as caught:
            await anext(script)
    assert (caught.value.failed.status, caught.value.failed.code) == (504, "input_timeout")


async def test_a_script_that_is_left_reads_no_more() -> None:
    begun = task("One. Two", appended=True)
    asked = Asked(begun)
    before = asyncio.all_tasks()
    async with aclosing(sentences(asked, begun, 400, 30)) as script:
        assert await anext(script) == "One. "
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_text_waits_with_the_request_while_too_many_sentences_are_unspoken() -> None:
    begun = task("", appended=True)
    asked = Asked(begun)
    for number in range(1000):
        asked.append(f"Number {number}. ")
    asked.append(None)
    async with aclosing(sentences(asked, begun, 400, 30)) as script:
        assert await anext(script) == "Number 0. "
        for _ in range(10):
            await asyncio.sleep(0)
        assert asked.unread > 900
        rest = [sentence async for sentence in script]
    assert rest == [f"Number {number}. " for number in range(1, 1000)]
