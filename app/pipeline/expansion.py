"""A picture whose prompt a language model writes: it is asked first, and what it says is drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from app.cluster import messages as m
from app.pipeline.content import content_of
from app.pipeline.request import RequestStream
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureTask, decode_task, encode_task
from app.telemetry.requests import EndReason, RequestMeter, reason_of

PLACE = "{prompt}"
"""Where the client's prompt stands in a template."""
MAX_TOKENS = 512
"""Of a prompt that is written: text encoders read fewer."""

_encode = msgspec.json.Encoder().encode


def question(template: str, task: PictureTask) -> bytes:
    """The body of the chat in which the prompt is written; a seed of the task holds for it as well."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": template.replace(PLACE, task.prompt)}],
        "max_tokens": MAX_TOKENS,
    }
    return _encode(body if task.seed is None else body | {"seed": task.seed})


class ExpandedStream:
    """The events of the picture stage, after an Extra that tells its `revised_prompt`; iterates as RequestStream.

    `text` is the chat of `question`, not started; `draw` makes the request of the picture stage from its body. A model
    that says nothing leaves the prompt as it is. `timeout_s` is the longest silence of the text stage; `meter` counts
    the whole.
    """

    def __init__(
        self,
        text: RequestStream,
        draw: Callable[[bytes], RequestStream],
        body: bytes,
        meter: RequestMeter,
        *,
        timeout_s: float,
    ) -> None:
        self._text = text
        self._draw = draw
        self._task = decode_task(body)
        self._meter = meter
        self._timeout_s = timeout_s
        self._picture: RequestStream | None = None
        self._told = False

    async def start(self) -> None:
        """Return when the prompt is written and the picture stage has accepted it.

        Raises:
            ApiError: what either stage refuses; 504, the text stage was silent for too long.
        """
        try:
            prompt = await self._written()
            self._task = msgspec.structs.replace(self._task, prompt=prompt or self._task.prompt)
            self._picture = self._draw(encode_task(self._task))
            await self._picture.start()
        except BaseException as error:
            await self.aclose(reason_of(error))
            raise
        self._meter.accepted()

    async def _written(self) -> str:
        events: list[m.AnyEvent] = []
        try:
            await self._in_time(self._text.start())
            while batch := await self._in_time(anext(self._text, [])):
                events += batch
        except ApiError as error:
            raise _of_the_prompt(error) from None
        return content_of(events).strip()

    async def _in_time(self, step: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await step
        except TimeoutError:
            message = f"nothing came for {self._timeout_s:g} s from the stage that writes the prompt"
            raise ApiError(504, message, code=m.INPUT_TIMEOUT) from None

    def __aiter__(self) -> ExpandedStream:
        return self

    async def __anext__(self) -> list[m.AnyEvent]:
        if not self._told:
            self._told = True
            return [m.Extra(_encode({"revised_prompt": self._task.prompt}))]
        assert self._picture is not None, "start() comes first"
        try:
            events = await anext(self._picture)
        except ApiError as error:
            self._meter.end(reason_of(error))
            raise
        self._meter.take(events)
        if isinstance(events[-1], m.Done):
            self._meter.end("done")
        return events

    async def aclose(self, reason: EndReason = "client_disconnect") -> None:
        """Abort what still runs, for `reason`, and free what the events referred to; may be called again."""
        self._meter.end(reason)
        await self._text.aclose(reason)
        if self._picture is not None:
            await self._picture.aclose(reason)


def _of_the_prompt(error: ApiError) -> ApiError:
    """The client has never seen the chat: what is wrong in it is the prompt."""
    found = error.body.error
    if error.status != 400:
        return error
    return ApiError(400, found.message, type=found.type, param="prompt", code=found.code)
