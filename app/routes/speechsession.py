"""What happens on one speech socket: a listener that always hears the client, and a speaker that takes its time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from litestar import Litestar

from app.protocol.errors import ApiError, invalid
from app.protocol.models import served_name
from app.protocol.speechsocket import (
    BadMessageError,
    ClientMessage,
    InputCancel,
    InputDone,
    InputText,
    Ping,
    Pong,
    SessionClose,
    SessionClosed,
    SessionConfig,
    SessionConfigured,
    decode_message,
    socket_error,
)
from app.protocol.speechtask import SpeechTask, encode_task
from app.routes.errors import shutting_down
from app.routes.socketlife import LARGE, NORMAL, Ending, first_ending, idle_for, until_gone, until_stopped
from app.routes.speech import with_uploaded_voice
from app.routes.state import draining, model_names, orchestrator, settings, stopping
from app.routes.trace import unique
from app.routes.utterance import Utterance
from app.routes.wire import Wire

if TYPE_CHECKING:
    from app.pipeline.request import RequestStream

CONFIG_S = 10.0
"""How long a client may take to say how it wants to be spoken to."""
MAX_UTTERANCES = 8
"""That wait behind the one which is being spoken."""


class SpeechSession:
    """One client. `model` is the one that it named in the URL, "" for none; `session_id` is for the log."""

    def __init__(self, app: Litestar, wire: Wire, model: str, session_id: str) -> None:
        self._app = app
        self._wire = wire
        self._model = model
        self._id = session_id
        self._limits = settings(app).speech
        self._task: SpeechTask | None = None
        self._open: Utterance | None = None
        self._spoken: Utterance | None = None
        self._waiting: deque[Utterance] = deque()
        self._count = 0
        self._closing = False
        self._more, self._idle = asyncio.Event(), asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._began = self._heard = self._clock()

    async def run(self) -> None:
        """Serve the client until one of the two has had enough, then close the socket."""
        parts = (self._listen(), self._speak(), until_gone(self._wire), until_stopped(self._app, self._idle))
        ending = await first_ending(parts, self._id, self._on_end)
        last_words = "" if ending.error is None else socket_error(ending.error).encode()
        await self._wire.close(ending.code, ending.reason, last_words)

    def _on_end(self) -> None:
        if self._spoken is not None and draining(self._app).is_set():
            self._spoken.end_reason = "shutdown"

    # ------------------------------------------------------------------------------------------------- speaking

    async def _speak(self) -> Ending:
        while True:
            while not self._waiting:
                self._idle.set()
                if self._closing:
                    await self._wire.send(SessionClosed(utterances=self._count).encode())
                    return Ending(NORMAL, "")
                self._more.clear()
                await self._more.wait()
            self._spoken = self._waiting.popleft()
            await self._spoken.speak(self._wire, self._submit)
            self._spoken = None

    async def _submit(self, utterance: Utterance) -> RequestStream:
        task = await with_uploaded_voice(self._app, msgspec.structs.replace(utterance.task))
        return await orchestrator(self._app).submit(
            "speech",
            unique(self._id),
            encode_task(task),
            model=utterance.model,
            limit_s=settings(self._app).server.request_timeout_s,
            streamed=True,
        )

    def _unfinished(self) -> list[Utterance]:
        return [*([] if self._spoken is None else [self._spoken]), *self._waiting]

    # ------------------------------------------------------------------------------------------------ listening

    async def _listen(self) -> Ending:
        while (deadline := self._deadline()) > self._clock():
            try:
                async with asyncio.timeout_at(deadline):
                    frame = await self._wire.receive()
            except TimeoutError:
                continue  # something may have been sent meanwhile
            await self._take(frame)
            self._heard = self._clock()
        awaited, limit_s = (
            ("session.config", CONFIG_S) if self._task is None else ("message", self._limits.socket_idle_s)
        )
        return idle_for(limit_s, awaited)

    def _deadline(self) -> float:
        """Until when the client has time for its next message; it has all the time in the world while it listens."""
        if self._task is None:
            return self._began + CONFIG_S
        if self._closing or any(utterance.complete for utterance in self._unfinished()):
            return self._clock() + self._limits.socket_idle_s
        return max(self._heard, self._wire.sent_at) + self._limits.socket_idle_s

    async def _take(self, frame: str | bytes) -> None:
        """Act on a frame; a mistake in it is told, and nothing else happens."""
        try:
            if isinstance(frame, bytes):
                raise BadMessageError(invalid("type", "is missing: messages are JSON in text frames"), None)
            message = decode_message(frame) if len(frame) < LARGE else await asyncio.to_thread(decode_message, frame)
            try:
                await self._act_on(message)
            except ApiError as error:
                raise BadMessageError(error, message.event_id) from None
        except BadMessageError as mistake:
            await self._wire.send(socket_error(mistake.error, event_id=mistake.event_id).encode())

    async def _act_on(self, message: ClientMessage) -> None:
        match message:
            case SessionConfig():
                await self._configure(message)
            case InputText():
                self._add(message.text)
            case InputDone():
                self._complete()
            case InputCancel():
                self._open = None
                for utterance in self._unfinished():
                    utterance.cancel()
                await self._idle.wait()  # what comes next finds the room of what has been cancelled
            case SessionClose():
                if self._open is not None:
                    self._complete()
                self._closing = True
                self._more.set()
            case Ping():
                await self._wire.send(Pong(event_id=message.event_id).encode())

    async def _configure(self, config: SessionConfig) -> None:
        model = served_name(model_names(self._app), config.model or self._model or None)
        self._task = task = config.task(self._limits)
        self._model = config.model or self._model
        told = SessionConfigured(
            session_id=self._id, model=model, response_format=task.format, voice=task.voice or None
        )
        await self._wire.send(told.encode())

    def _add(self, text: str) -> None:
        if self._task is None:
            raise ApiError(400, "Send a session.config first; it may be empty.", code="session_not_configured")
        most = self._limits.socket_max_characters
        if sum(utterance.characters for utterance in self._unfinished()) + len(text) > most:
            message = f"More than {most} characters wait to be spoken (--speech-socket-max-characters); send it later."
            raise ApiError(413, message, param="text", code="too_much_text")
        if self._open is None:
            self._open = self._begin(self._task)
        self._open.add(text)

    def _begin(self, task: SpeechTask) -> Utterance:
        if self._closing:
            raise ApiError(400, "The session has been closed; nothing more is spoken.", code="session_closed")
        if stopping(self._app).is_set():
            raise shutting_down()
        if len(self._waiting) >= MAX_UTTERANCES:
            raise ApiError(
                429, f"{MAX_UTTERANCES} utterances wait to be spoken; send it later.", code="too_many_utterances"
            )
        utterance = Utterance(self._count, task, self._model)
        self._count += 1
        self._waiting.append(utterance)
        self._idle.clear()
        self._more.set()
        return utterance

    def _complete(self) -> None:
        if self._open is None:
            raise ApiError(400, "There is no text to be done with; send input.text first.", code="input_empty")
        self._open.end()
        self._open = None
