"""POST /v1/audio/speech/batch."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar import Request, Response, post

from app.protocol.errors import ApiError
from app.protocol.fields import FieldDecoder
from app.protocol.models import served_name
from app.protocol.speech import speech_task
from app.protocol.speechbatch import REFUSED_HERE, BatchRequest, Result, Spoken, decode_item, encode_results
from app.protocol.speechtask import encode_task
from app.routes.body import decode_body, json_body
from app.routes.openapi import ERRORS
from app.routes.speech import SoundFile, with_uploaded_voice
from app.routes.speechdocs import BatchOperation
from app.routes.state import model_names, orchestrator, settings
from app.routes.submission import Submission, answered, attended, refuse_while_stopping
from app.routes.trace import trace_of

_AT_ONCE = 8
"""Items of one batch that a replica is asked for at a time: it has other clients."""
_decoder = FieldDecoder(BatchRequest, REFUSED_HERE)


@post(
    "/v1/audio/speech/batch",
    status_code=200,
    operation_class=BatchOperation,
    operation_id="createSpeechBatch",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    summary="Speak several texts",
)
async def create_speech_batch(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A result for each item, the sound in base64 or an error; 200 where at least one has worked."""
    refuse_while_stopping(request)
    asked = await decode_body(_decoder, await json_body(request))
    asked.check(settings(request.app).speech.batch_max_items)
    served_name(model_names(request.app), asked.model)
    orchestrator(request.app).stage_of("speech")
    results = await attended(request, _results(request, asked))
    content = encode_results(f"speech-batch-{trace_of(request.scope).request_id}", results)
    return Response(content, media_type="application/json")


async def _results(request: Request[Any, Any, Any], asked: BatchRequest) -> list[Result]:
    limiter = asyncio.Semaphore(_AT_ONCE)

    async def result(raw: msgspec.Raw) -> Result:
        async with limiter:
            try:
                return await _speak(request, asked, raw)
            except ApiError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(result(raw)) for raw in asked.items]
    return [task.result() for task in tasks]


async def _speak(request: Request[Any, Any, Any], asked: BatchRequest, raw: msgspec.Raw) -> Spoken:
    item = decode_item(raw, asked)
    task = speech_task(item, item.input, settings(request.app).speech, base64=True)
    submission = Submission("speech", encode_task(await with_uploaded_voice(request.app, task)), asked.model or "")
    file = SoundFile(item.format)
    content = await answered(request, submission, file.content)
    return Spoken(content, file.media_type, file.sound.sample_rate, file.sound.usage)
