"""POST /v1/audio/generate."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from app.protocol.fields import FieldDecoder
from app.protocol.models import served_name
from app.protocol.sounds import REFUSED, SoundRequest
from app.protocol.soundtask import encode_task
from app.routes.body import decode_body, json_body
from app.routes.openapi import ERRORS
from app.routes.speech import SoundFile
from app.routes.speechdocs import SoundOperation
from app.routes.state import model_names
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond

_decoder = FieldDecoder(SoundRequest, REFUSED)


@post(
    "/v1/audio/generate",
    status_code=200,
    media_type="audio/wav",
    operation_class=SoundOperation,
    operation_id="generateAudio",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    summary="Make a sound",
)
async def generate_audio(request: Request[Any, Any, Any]) -> Response[Any]:
    """The sound that a prompt describes, as one file."""
    refuse_while_stopping(request)
    asked = await decode_body(_decoder, await json_body(request))
    served_name(model_names(request.app), asked.model)
    submission = Submission("sound", encode_task(asked.task()), asked.model or "")
    file = SoundFile(asked.format)
    return await respond(request, submission, Delivery(file.whole, file.pieces), stream=False)
