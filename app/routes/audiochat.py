"""POST /v1/chat/completions where `modalities` name audio: what the model says is heard as well."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from litestar import Request, Response

from app.protocol.audiochat import Parts, parts_of, placed
from app.protocol.errors import ApiError
from app.protocol.generation import GenerationRequest, Identity
from app.protocol.models import served_name
from app.protocol.speechtask import encode_task
from app.protocol.spokenanswer import SpokenChunks, SpokenMessage, Voicing
from app.protocol.sse import DONE, failed_ending
from app.routes.body import decoded
from app.routes.speech import with_uploaded_voice
from app.routes.state import model_names, orchestrator, settings
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond
from app.routes.trace import trace_of

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream


def asks_for_sound(request: Request[Any, Any, Any], asked: GenerationRequest) -> bool:
    """Whether the answer is to be heard, or something else than text is asked of a pipeline that speaks."""
    return orchestrator(request.app).speaks and (asked.audio is not None or asked.modalities not in (None, ["text"]))


async def speak_in_chat(request: Request[Any, Any, Any], body: bytes) -> Response[Any]:
    """One chat.completion with text and sound, or a stream of chunks with either.

    Raises:
        ApiError: whatever the worker or one of the replicas refuses.
        ClientGoneError: the client left before there was an answer.
    """
    refuse_while_stopping(request)
    stages, limits = orchestrator(request.app).positions("chat", "audio"), settings(request.app).speech
    parts = await decoded(body, partial(parts_of, stages=stages, limits=limits))
    model = served_name(model_names(request.app), parts.asked.model)
    identity = Identity("chatcmpl-" + trace_of(request.scope).request_id, int(time.time()), model)
    task = encode_task(await with_uploaded_voice(request.app, parts.speech))
    submission = Submission("chat", parts.chat, parts.asked.model or "", speech=task)
    delivery = _delivery(request, parts, identity)
    try:
        return await respond(request, submission, delivery, stream=bool(parts.asked.stream))
    except ApiError as error:
        raise placed(error, parts.places) from None


def _delivery(request: Request[Any, Any, Any], parts: Parts, identity: Identity) -> Delivery:
    asked = parts.asked
    separate = settings(request.app).speech.chat_audio_shape == "vllm-omni"
    voicing = Voicing("audio-" + trace_of(request.scope).request_id, identity.created, asked.readable, separate)

    async def whole(stream: AnswerStream) -> bytes:
        answer = SpokenMessage(identity, voicing)
        async for events in stream:
            answer.add(events)
        return answer.encode()

    async def frames(stream: AnswerStream) -> AsyncIterator[bytes]:
        writer = SpokenChunks(identity, asked.usage_mode, voicing)
        yield writer.open()
        async for events in stream:
            if frame := writer.write(events):
                yield frame
        yield writer.close() + DONE

    return Delivery(whole, frames, failed_ending)
