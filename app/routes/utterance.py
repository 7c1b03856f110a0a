"""One utterance of a speech socket: its text goes to a replica as it comes, its sound to the client as it is made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from app.cluster.messages import Audio, Usage
from app.protocol.errors import ApiError
from app.protocol.speechanswers import usage_object
from app.protocol.speechsocket import AudioDone, AudioSentence, AudioStart, SessionDone, Status, socket_error
from app.protocol.speechtask import SpeechTask
from app.routes.interrupt import Interrupt
from app.routes.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from app.cluster.messages import AnyEvent
    from app.pipeline.request import RequestStream
    from app.telemetry.requests import EndReason


class CancelledByClientError(Exception):
    """The client wants to hear no more of it."""


class Utterance:
    """`complete` once the client has said so; `characters` that it has sent. `end_reason`: why it would end early."""

    def __init__(self, index: int, task: SpeechTask, model: str) -> None:
        self.index = index
        self.task = task
        self.model = model
        self.complete = False
        self.characters = 0
        self.end_reason: EndReason = "client_disconnect"
        self._texts: list[str] = []
        self._stream: RequestStream | None = None
        self._cancelled = asyncio.Event()
        self._over = False
        self._rate = 0
        self._bytes = 0
        self._samples = 0
        self._sentences = 0
        self._usage: Usage | None = None

    def add(self, text: str) -> None:
        """More text; what comes after a failure is not spoken any more."""
        self.characters += len(text)
        self._pass_on(text)

    def end(self) -> None:
        """There is no more text."""
        self.complete = True
        self._pass_on("")

    def cancel(self) -> None:
        """Stop speaking it, wherever that is."""
        self.complete = True
        self._cancelled.set()

    def _pass_on(self, text: str) -> None:
        if self._over:
            return
        if self._stream is None:
            self._texts.append(text)
        else:
            self._stream.append(text.encode(), last=self.complete)

    async def speak(self, wire: Wire, submit: Callable[[Utterance], Awaitable[RequestStream]]) -> None:
        """Have it spoken, and tell the client how that went.

        Raises:
            LostClientError: nobody is there to hear it.
        """
        cancelled = Interrupt(self._cancelled.wait())
        status: Status = "failed"
        try:
            await self._speak(wire, submit, cancelled)
            status = "completed"
        except CancelledByClientError:
            status = "cancelled"
        except ApiError as error:
            await wire.send(socket_error(error, utterance_index=self.index).encode())
        finally:
            self._over = True
            if self._stream is not None:
                await self._stream.aclose(self.end_reason)
            await cancelled.close()
        await self._tell_end(wire, status)

    async def _speak(
        self, wire: Wire, submit: Callable[[Utterance], Awaitable[RequestStream]], cancelled: Interrupt
    ) -> None:
        if self._cancelled.is_set():
            raise CancelledByClientError
        with cancelled.raising(CancelledByClientError()):
            self._stream = stream = await submit(self)
        texts, self._texts = "".join(self._texts), []
        stream.append(texts.encode(), last=self.complete)
        while True:
            # Only the waiting is interrupted: a frame that is being sent has to be sent to its end.
            with cancelled.raising(CancelledByClientError()):
                events = await anext(stream, None)
            if events is None:
                return
            for event in events:
                if self._cancelled.is_set():
                    raise CancelledByClientError
                await self._send(wire, event)

    async def _send(self, wire: Wire, event: AnyEvent) -> None:
        if isinstance(event, Usage):
            self._usage = event
        if not isinstance(event, Audio):
            return
        if not self._rate:
            self._rate = event.sample_rate
            start = AudioStart(utterance_index=self.index, format=event.format, sample_rate=self._rate)
            await wire.send(start.encode())
        if event.transcript:
            sentence = AudioSentence(
                utterance_index=self.index,
                sentence_index=self._sentences,
                text=event.transcript,
                offset=self._samples,
            )
            self._sentences += 1
            await wire.send(sentence.encode())
        self._samples += event.samples
        if event.data:
            self._bytes += len(event.data)
            await wire.send(bytes(event.data))

    async def _tell_end(self, wire: Wire, status: Status) -> None:
        if self._rate:
            done = AudioDone(
                utterance_index=self.index,
                total_bytes=self._bytes,
                samples=self._samples,
                error=status == "failed",
                cancelled=status == "cancelled",
            )
            await wire.send(done.encode())
        usage = None if self._usage is None else usage_object(self._usage)
        ended = SessionDone(utterance_index=self.index, total_sentences=self._sentences, status=status, usage=usage)
        await wire.send(ended.encode())
