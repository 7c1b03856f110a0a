"""What the two text generation routes share: from the request to a whole answer or a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response

from app.protocol.answer import Answer
from app.protocol.chunks import ChunkWriter
from app.protocol.decoding import BodyDecoder
from app.protocol.generation import GenerationRequest, Identity, UsageMode
from app.protocol.models import served_name
from app.protocol.sse import DONE, failed_ending
from app.protocol.stageparams import for_one_stage
from app.routes.body import json_body
from app.routes.state import model_names, orchestrator
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond
from app.routes.trace import trace_of

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream

decode_generation = BodyDecoder(GenerationRequest).decode


class Api(msgspec.Struct, frozen=True):
    """One OpenAI API: the task that replicas know it by, the prefix of its ids, and how its answers are written."""

    task: str
    id_prefix: str
    writer: Callable[[Identity, UsageMode], ChunkWriter]
    answer: Callable[[Identity], Answer]


async def generate(
    request: Request[Any, Any, Any], api: Api, body: bytes | None = None, asked: GenerationRequest | None = None
) -> Response[Any]:
    """Answer one request; `body` and what is `asked` in it if they have been read already.

    Nothing is sent before a replica has accepted it.

    Raises:
        ApiError: whatever the worker or the replica refuses.
        ClientGoneError: the client left before there was an answer.
    """
    refuse_while_stopping(request)
    content = await json_body(request) if body is None else body
    if asked is None:
        asked = decode_generation(content)
    if asked.sampling_params_list is not None:
        (position,) = orchestrator(request.app).positions(api.task)
        content = for_one_stage(content, asked.sampling_params_list, position)
    model = served_name(model_names(request.app), asked.model)
    identity = Identity(api.id_prefix + trace_of(request.scope).request_id, int(time.time()), model)
    submission = Submission(api.task, content, asked.model or "")
    return await respond(request, submission, _delivery(api, asked, identity), stream=bool(asked.stream))


def _delivery(api: Api, asked: GenerationRequest, identity: Identity) -> Delivery:
    async def whole(stream: AnswerStream) -> bytes:
        answer = api.answer(identity)
        async for events in stream:
            answer.add(events)
        return answer.encode()

    async def frames(stream: AnswerStream) -> AsyncIterator[bytes]:
        writer = api.writer(identity, asked.usage_mode)
        if opening := writer.open(asked.n or 1):
            yield opening
        async for events in stream:
            if frame := writer.write(events):
                yield frame
        yield writer.close() + DONE

    return Delivery(whole, frames, failed_ending)
