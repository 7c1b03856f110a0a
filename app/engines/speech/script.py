"""The text of a request as sentences, while it still comes in and the first of them are spoken already."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, AsyncIterator

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from app.cluster.messages import INPUT_TIMEOUT, Failed
from app.engines.base import EngineError, Request
from app.engines.refusal import refuse
from app.engines.speech.sentences import Splitter
from app.protocol.speechtask import SpeechTask

_AHEAD = 64
"""Sentences that may wait to be spoken. Further text is left to the request, whose limit then holds."""


async def sentences(request: Request, task: SpeechTask, longest: int, patience_s: float) -> AsyncGenerator[str, None]:
    """The sentences of the task's text and, where more is appended, of that; of `longest` characters at most.

    Raises:
        EngineError: 504, nothing was appended for `patience_s` seconds; 400, it is no UTF-8.
    """
    send, receive = anyio.create_memory_object_stream[str](_AHEAD)
    reader = asyncio.create_task(_read(request, task, Splitter(longest), patience_s, send))
    try:
        async with receive:
            async for sentence in receive:
                yield sentence
        await reader
    finally:
        reader.cancel()


async def _read(
    request: Request, task: SpeechTask, splitter: Splitter, patience_s: float, send: MemoryObjectSendStream[str]
) -> None:
    async with send:
        for sentence in splitter.push(task.text):
            await send.send(sentence)
        if task.appended:
            async for text in _appended(request, patience_s):
                for sentence in splitter.push(text):
                    await send.send(sentence)
        for sentence in splitter.flush():
            await send.send(sentence)


async def _appended(request: Request, patience_s: float) -> AsyncIterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    ended = False
    while not ended:
        try:
            async with asyncio.timeout(patience_s):
                data = await request.next_input()
        except TimeoutError:
            message = f"no further text came for {patience_s:g} s (input_timeout_s of the speech stage)"
            raise EngineError(Failed(504, message, "timeout_error", code=INPUT_TIMEOUT)) from None
        ended = data is None
        try:
            text = decoder.decode(data or b"", final=ended)
        except UnicodeDecodeError as error:
            refuse(f"the appended text is no UTF-8: {error.reason}", "input")
        yield text
