"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

from litestar import Request, Response, post

from app.protocol.errors import invalid
from app.protocol.listening import LISTS, Asked, judged, listening_task, no_recording
from app.protocol.models import served_name
from app.protocol.sse import error_frame
from app.protocol.transcripts import MEDIA_TYPES, TranscriptEvents, written
from app.routes.listeningdocs import TranscriptionOperation, TranslationOperation
from app.routes.multipart import Part, read_form, require_form
from app.routes.openapi import ERRORS
from app.routes.relay import whole
from app.routes.state import model_names
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream


@post(
    "/v1/audio/transcriptions",
    status_code=200,
    operation_class=TranscriptionOperation,
    operation_id="createTranscription",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    summary="Write down what is said in a recording",
)
async def create_transcription(request: Request[Any, Any, Any]) -> Response[Any]:
    """The text of a recording in the language that is spoken, or a stream of its pieces with `stream=true`."""
    return await _listen(request, "transcription")


@post(
    "/v1/audio/translations",
    status_code=200,
    operation_class=TranslationOperation,
    operation_id="createTranslation",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    summary="Translate what is said in a recording",
)
async def create_translation(request: Request[Any, Any, Any]) -> Response[Any]:
    """The text of a recording in English, or in `to_language` where the model knows others."""
    return await _listen(request, "translation")


async def _listen(request: Request[Any, Any, Any], kind: Literal["transcription", "translation"]) -> Response[Any]:
    refuse_while_stopping(request)
    require_form(request)
    fields, lists, file = _sorted(await read_form(request))
    asked = judged(fields, lists)
    served_name(model_names(request.app), asked.model)
    submission = Submission(kind, listening_task(asked, fields, file), asked.model or "")
    return await respond(request, submission, _delivery(asked), stream=asked.stream)


def _sorted(parts: list[Part]) -> tuple[dict[str, str], dict[str, list[str]], bytes]:
    """The fields of a form, those of them that are lists, and the recording.

    Raises:
        ApiError: 400, there is no recording, or something is there twice.
    """
    fields: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    files: list[bytes] = []
    for part in parts:
        name = part.name.removesuffix("[]")
        if part.name == "file":
            if not part.is_file:
                raise invalid("file", "must be uploaded as a file; this is a text")
            files.append(part.data)
        elif part.is_file:
            raise invalid(part.name, "is not a file")
        elif name in LISTS:
            lists.setdefault(name, []).append(part.text)
        elif part.name in fields:
            raise invalid(part.name, "is given twice")
        else:
            fields[part.name] = part.text
    if not files:
        raise no_recording()
    if len(files) > 1:
        raise invalid("file", "is given twice; there is one recording to a request")
    return fields, lists, files[0]


def _delivery(asked: Asked) -> Delivery:
    async def answer(stream: AnswerStream) -> bytes | Response[str]:
        document = await whole(stream)
        kind = MEDIA_TYPES.get(asked.response_format)
        if kind is None:
            return document
        return Response(written(document, asked.response_format), media_type=kind)

    async def frames(stream: AnswerStream) -> AsyncIterator[bytes]:
        writer = TranscriptEvents()
        async for events in stream:
            if frame := writer.write(events):
                yield frame

    return Delivery(answer, frames, error_frame)
