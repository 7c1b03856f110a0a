"""POST /v1/audio/speech."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Litestar, Request, Response, post

from app.protocol.fields import FieldDecoder
from app.protocol.models import served_name
from app.protocol.speech import CONTENT_TYPES, REFUSED, SpeechRequest, speech_task
from app.protocol.speechanswers import (
    RATE_HEADER,
    USAGE_HEADER,
    Sound,
    SpeechEvents,
    failed_events,
    silent,
    usage_object,
)
from app.protocol.speechtask import SpeechFormat, SpeechTask, encode_task
from app.protocol.wordtimes import asked_of_speech, no_aligner, spoken_and_timed, times_headers
from app.routes.body import decode_body, json_body
from app.routes.openapi import ERRORS
from app.routes.speechdocs import SpeechOperation
from app.routes.sse import Headers
from app.routes.state import model_names, orchestrator, settings
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond
from app.routes.voices import voice_sample

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream

_decoder = FieldDecoder(SpeechRequest, REFUSED)


@post(
    "/v1/audio/speech",
    status_code=200,
    media_type="audio/mpeg",
    operation_class=SpeechOperation,
    operation_id="createSpeech",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    summary="Speak a text",
)
async def create_speech(request: Request[Any, Any, Any]) -> Response[Any]:
    """The text as a sound file: whole, in pieces as they are made, or as server-sent events."""
    refuse_while_stopping(request)
    asked = await decode_body(_decoder, await json_body(request))
    asked.check()
    served_name(model_names(request.app), asked.model)
    delivered = asked.delivered
    timed = bool(asked.word_timestamps)
    if timed and not orchestrator(request.app).aligns:
        raise no_aligner("word_timestamps")
    as_json = timed and request.headers.get("accept") == "application/json"
    task = speech_task(
        asked,
        asked.input,
        settings(request.app).speech,
        streamed=delivered != "whole",
        base64=delivered == "events" or as_json,
        timed=timed,
    )
    body = encode_task(await with_uploaded_voice(request.app, task))
    times_of = asked_of_speech(task) if timed else None
    submission = Submission("speech", body, asked.model or "", align=times_of)
    file = TimedFile(asked.format, as_json) if timed else SoundFile(asked.format)
    if delivered == "events":
        delivery = Delivery(file.whole, _events, failed_events)
    else:
        delivery = Delivery(file.whole, file.pieces, opening=file.opening)
    return await respond(request, submission, delivery, stream=delivered != "whole")


async def with_uploaded_voice(app: Litestar, task: SpeechTask) -> SpeechTask:
    """The task with the sample of its voice, where that is one that a client has uploaded."""
    if task.sample is None and task.voice:
        task.sample = await voice_sample(app, task.voice)
    return task


async def _events(stream: AnswerStream) -> AsyncIterator[bytes]:
    writer = SpeechEvents()
    async for events in stream:
        if frame := writer.write(events):
            yield frame


class SoundFile:
    """Writes one answer that is a sound file, as a whole or in pieces."""

    def __init__(self, format: SpeechFormat) -> None:
        self.media_type = CONTENT_TYPES[format]
        self.sound = Sound()
        self._first = b""

    async def content(self, stream: AnswerStream) -> bytes:
        """The whole file.

        Raises:
            ApiError: 500, there is no sound.
        """
        content = b"".join([piece async for events in stream if (piece := self.sound.add(events))])
        if not content:
            raise silent()
        return content

    async def whole(self, stream: AnswerStream) -> Response[bytes]:
        """The response with all of it; raises what `content` raises."""
        content = await self.content(stream)
        return Response(content, media_type=self.media_type, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {
            RATE_HEADER: str(self.sound.sample_rate),
            USAGE_HEADER: msgspec.json.encode(usage_object(self.sound.usage)).decode(),
        }

    async def opening(self, stream: AnswerStream) -> Headers:
        """The headers, once there is a first piece: until then a failure still has a status.

        Raises:
            ApiError: 500, there is no sound.
        """
        async for events in stream:
            self._first = self.sound.add(events)
            if self._first:
                rate = str(self.sound.sample_rate).encode()
                return [
                    (b"content-type", self.media_type.encode()),
                    (RATE_HEADER.lower().encode(), rate),
                    (b"x-accel-buffering", b"no"),
                ]
        raise silent()

    async def pieces(self, stream: AnswerStream) -> AsyncIterator[bytes]:
        """The pieces, as they are made."""
        yield self._first
        async for events in stream:
            if piece := self.sound.add(events):
                yield piece


class TimedFile(SoundFile):
    """A whole file with the times of its words: in a header, or with the sound in JSON."""

    def __init__(self, format: SpeechFormat, as_json: bool) -> None:
        super().__init__(format)
        self._format = format
        self._as_json = as_json

    async def whole(self, stream: AnswerStream) -> Response[bytes]:
        """The response with all of it; raises what `content` raises."""
        content = await self.content(stream)
        if self._as_json:
            told = spoken_and_timed(content, self._format, self.sound)
            return Response(told, media_type="application/json")
        headers = self._headers() | times_headers(self.sound.words)
        return Response(content, media_type=self.media_type, headers=headers)
