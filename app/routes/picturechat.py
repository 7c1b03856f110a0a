"""POST /v1/chat/completions where pictures are asked for: of a model that only draws, or by `modalities`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Any

from litestar import Request, Response

from app.cluster.messages import AnyEvent
from app.protocol.chat import chat_answer, chat_writer
from app.protocol.fields import FieldDecoder
from app.protocol.generation import GenerationRequest, Identity
from app.protocol.images import REFUSED, check_inputs, picture_task
from app.protocol.models import served_name
from app.protocol.picturechat import PictureChat, as_deltas, as_message
from app.protocol.pictures import encode_task
from app.protocol.sse import DONE, failed_ending
from app.routes.body import decode_body
from app.routes.images import usual_steps
from app.routes.state import model_names
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond
from app.routes.trace import trace_of

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream


_decoder = FieldDecoder(PictureChat, REFUSED)


def draws(tasks: Collection[str]) -> bool:
    """Whether a model with these tasks answers chats with pictures."""
    return any(task.startswith("image") for task in tasks)


def asks_for_pictures(asked: GenerationRequest) -> bool:
    """Whether a chat with several models is one with that which draws."""
    return isinstance(asked.modalities, list) and "image" in asked.modalities


async def draw_in_chat(request: Request[Any, Any, Any], body: bytes) -> Response[Any]:
    """One chat.completion whose content is a list of pictures, or a stream of chunks with one picture each.

    Raises:
        ApiError: whatever the worker or the replica refuses.
        ClientGoneError: the client left before there was an answer.
    """
    refuse_while_stopping(request)
    asked = await decode_body(_decoder, body)
    asked.check()
    model = served_name(model_names(request.app), asked.model)
    images = asked.sources()
    if images:
        check_inputs(images, "messages")
    task = picture_task(
        asked.controls(), asked.prompt(), steps=usual_steps(request), images=images, progress=bool(asked.stream)
    )
    identity = Identity("chatcmpl-" + trace_of(request.scope).request_id, int(time.time()), model)
    submission = Submission("image_edit" if images else "image", encode_task(task), asked.model or "")
    return await respond(request, submission, _delivery(asked, identity), stream=bool(asked.stream))


def _delivery(asked: PictureChat, identity: Identity) -> Delivery:
    async def whole(stream: AnswerStream) -> bytes:
        events: list[AnyEvent] = []
        async for batch in stream:
            events += batch
        answer = chat_answer(identity)
        answer.add(as_message(events))
        return answer.encode()

    async def frames(stream: AnswerStream) -> AsyncIterator[bytes]:
        writer = chat_writer(identity, asked.usage_mode)
        yield writer.open(1)
        async for batch in stream:
            comment, deltas = as_deltas(batch)
            if frame := comment + writer.write(deltas):
                yield frame
        yield writer.close() + DONE

    return Delivery(whole, frames, failed_ending)
