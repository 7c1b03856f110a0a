"""One response on a realtime socket: asked of the stages, written as it comes, ended at once when it has to be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from litestar import Litestar

from app.protocol.errors import ApiError
from app.protocol.realtimeaudio import RATE
from app.protocol.realtimeitems import Item, size_of
from app.protocol.realtimeresponse import Asked, ResponseError, StatusDetails
from app.protocol.realtimeserver import ServerEvent, error_event
from app.protocol.speech import Manner, manner_task
from app.protocol.speechtask import encode_task
from app.realtime.prompt import chat_body, later_half
from app.realtime.writer import ResponseWriter
from app.routes.interrupt import Interrupt
from app.routes.socketlife import LARGE
from app.routes.speech import with_uploaded_voice
from app.routes.state import orchestrator, settings
from app.routes.trace import unique

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream
    from app.telemetry.requests import EndReason

Send = Callable[[ServerEvent], Awaitable[None]]
Cancellation = Literal["turn_detected", "client_cancelled"]

TOO_LONG = "context_length_exceeded"


class CancelledByClientError(Exception):
    """The client wants no more of it, or somebody speaks."""


class Answer:
    """`over` once nothing but its last event is left to be sent: who has got that may ask for the next response.

    `end_reason`: why it would end early. `event_id`: the client's event that has asked for it.
    """

    def __init__(
        self, app: Litestar, send: Send, asked: Asked, writer: ResponseWriter, session_id: str, event_id: str | None
    ) -> None:
        self.asked = asked
        self.over = False
        self.end_reason: EndReason = "client_disconnect"
        self._app = app
        self._send = send
        self._writer = writer
        self._session_id = session_id
        self._event_id = event_id
        self._stream: AnswerStream | None = None
        self._cancelled = asyncio.Event()
        self._cancellation: Cancellation = "client_cancelled"

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self._writer.response_id

    def cancel(self, cancellation: Cancellation) -> None:
        """End it, wherever it is; `run` returns soon."""
        self._cancellation = cancellation
        self._cancelled.set()

    async def run(self) -> None:
        """See it through.

        Raises:
            LostClientError: nobody is there to read it.
        """
        cancelled = Interrupt(self._cancelled.wait())
        try:
            details = await self._answer(cancelled)
        finally:
            if self._stream is not None:
                await self._stream.aclose(self.end_reason)
            await cancelled.close()
        if details is None:
            return
        last = None
        for event in self._writer.close(details):
            if last is not None:
                await self._send(last)
            last = event
        assert last is not None, "a response is closed with an event"
        self.over = True
        await self._send(last)

    async def _answer(self, cancelled: Interrupt) -> StatusDetails | None:
        """How it has ended; None if no stage has taken it, which the client has been told."""
        try:
            with cancelled.raising(CancelledByClientError()):
                self._stream = stream = await self._submit()
        except CancelledByClientError:
            await self._tell(self._writer.open())
            return self._cancelled_details()
        except ApiError as error:
            self.over = True
            await self._send(error_event(_as_asked(error), self._event_id))
            return None
        await self._tell(self._writer.open())
        try:
            await self._pass_on(stream, cancelled)
        except CancelledByClientError:
            return self._cancelled_details()
        except ApiError as error:
            found = error.body.error
            failure = ResponseError(type=found.type, code=found.code, message=found.message)
            return StatusDetails(type="failed", error=failure)
        return self._writer.outcome

    def _cancelled_details(self) -> StatusDetails:
        return StatusDetails(type="cancelled", reason=self._cancellation)

    async def _pass_on(self, stream: AnswerStream, cancelled: Interrupt) -> None:
        while True:
            # Only the waiting is interrupted: a frame that is being sent has to be sent to its end.
            with cancelled.raising(CancelledByClientError()):
                events = await anext(stream, None)
            if events is None:
                return
            for event in events:
                await self._tell(self._writer.write(event), interrupted=True)

    async def _tell(self, events: Iterator[ServerEvent], *, interrupted: bool = False) -> None:
        for event in events:
            if interrupted and self._cancelled.is_set():
                raise CancelledByClientError
            await self._send(event)

    async def _submit(self) -> AnswerStream:
        """Ask the stages; of a conversation that is too long for the model, about the later half of it."""
        items: Sequence[Item] = self.asked.items
        while True:
            try:
                return await self._ask(items)
            except ApiError as error:
                shorter = later_half(items)
                if error.body.error.code != TOO_LONG or not self.asked.truncates or not shorter:
                    raise
                items = shorter

    async def _ask(self, items: Sequence[Item]) -> AnswerStream:
        body = await self._body(items)
        stages, limit_s = orchestrator(self._app), settings(self._app).server.request_timeout_s
        request_id = unique(self._session_id)
        model = self.asked.model
        if self.asked.modality == "text":
            return await stages.submit("chat", request_id, body, model=model, limit_s=limit_s, streamed=True)
        speech = await self._speech()
        return await stages.speak(request_id, body, speech, model=model, limit_s=limit_s, streamed=True)

    async def _body(self, items: Sequence[Item]) -> bytes:
        if sum(map(size_of, items)) < LARGE:
            return chat_body(self.asked, items)
        return await asyncio.to_thread(chat_body, self.asked, items)

    async def _speech(self) -> bytes:
        manner = Manner(voice=self.asked.voice, speed=self.asked.speed, response_format="pcm", sample_rate=RATE)
        task = manner_task(manner, settings(self._app).speech, streamed=True, base64=True)
        task.appended = True
        return encode_task(await with_uploaded_voice(self._app, task))


def _as_asked(error: ApiError) -> ApiError:
    """The same refusal of the speech stage, whose parameters are members of `audio.output` here."""
    found = error.body.error
    if found.param is not None and found.param.startswith("audio."):
        found.param = f"audio.output.{found.param.removeprefix('audio.')}"
    return error
