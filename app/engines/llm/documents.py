"""Answers the tasks of app.engines.llm.tasks: a whole JSON document, or a stream of named events."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
from starlette.responses import Response

from app.cluster.messages import Accepted, AnyEvent, Document, Done, Failed, Named, Usage
from app.engines.base import EngineError, Request
from app.engines.llm.blame import blamed
from app.engines.llm.errors import engine_dead, raise_if_error, refusal
from app.engines.llm.frontend import Batch, Frontend
from app.engines.llm.media import locate
from app.engines.llm.responses import Responses
from app.engines.llm.serving import check_cancelled
from app.engines.llm.tasks import Task, generation_tasks, pooling_tasks, token_tasks
from app.media.errors import MediaError
from app.protocol.errors import default_type

logger = logging.getLogger("app.engines.llm")

_REPORTS_USAGE = frozenset({"response.completed", "message_delta"})
"""Named events that tell token counts."""


class Documents:
    """What one engine serves beside chat and completions."""

    def __init__(self, frontend: Frontend, state: SimpleNamespace, instance: str) -> None:
        self._frontend = frontend
        self._tasks = token_tasks(state) | pooling_tasks(state)
        if getattr(state, "openai_serving_chat", None) is not None:
            self._tasks |= generation_tasks(state) | Responses(state, instance).tasks()

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return list(self._tasks)

    async def answer(self, request: Request) -> None:
        """Serve one request to its end.

        Raises:
            EngineError: the request is refused or failed.
        """
        task = self._tasks[request.kind]
        parsed = task.schema.parse(request.body)
        outlet = _Outlet(request)
        batch = Batch(self._frontend, outlet.accept)
        try:
            with nullcontext() if task.detached(parsed) else batch:
                await self._emit(await task.answer(parsed), task, outlet, batch)
        except MediaError as error:
            raise error.at(locate(request.body, error.source, task.schema.prompt) or task.schema.prompt) from error
        except Exception as error:
            if self._frontend.errored:
                raise engine_dead() from error
            raise _refusal(error, task, request.body) from error
        finally:
            await batch.close()
        outlet.accept()
        request.emit(Done())

    async def _emit(self, answer: Any, task: Task, outlet: _Outlet, batch: Batch) -> None:
        check_cancelled()
        raise_if_error(answer, prompt=task.schema.prompt)
        if isinstance(answer, pydantic.BaseModel | Response):
            body = _encode(answer, task)
            outlet.emit(_usage(body))
            outlet.emit(Document(body))
            return
        await batch.admit()
        async for event in answer:
            name, data = _named(event)
            if name == "error":
                raise EngineError(Failed(500, _message(data)))
            if name in _REPORTS_USAGE:
                outlet.emit(_usage(data))
            outlet.emit(Named(name, data))
            await outlet.ready()


class _Outlet:
    """Holds events back until the engine has accepted the request; `accept` may be called again."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._held: list[AnyEvent] | None = []

    def accept(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            for event in [Accepted(), *held]:
                self._request.emit(event)

    async def ready(self) -> None:
        """Wait for the client's credit, but never for that of a request that is still to be accepted."""
        if self._held is None:
            await self._request.ready()

    def emit(self, event: AnyEvent | None) -> None:
        if event is not None:
            (self._request.emit if self._held is None else self._held.append)(event)


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None


class _Counted(msgspec.Struct):
    usage: _Counts | None = None
    response: _Counted | None = None


_decode_counted = msgspec.json.Decoder(_Counted).decode


def _usage(answer: bytes) -> Usage | None:
    counted = _decode_counted(answer)
    usage = counted.usage or (counted.response.usage if counted.response else None)
    if usage is None:
        return None
    return Usage(usage.prompt_tokens or usage.input_tokens or 0, usage.completion_tokens or usage.output_tokens or 0)


def _encode(answer: pydantic.BaseModel | Response, task: Task) -> bytes:
    if isinstance(answer, Response):
        return bytes(answer.body)
    return answer.model_dump_json(by_alias=True, exclude_none=not task.nulls).encode()


def _named(event: Any) -> tuple[str, bytes]:
    if isinstance(event, pydantic.BaseModel):
        return str(event.type), event.model_dump_json(by_alias=True).encode()  # type: ignore[attr-defined]
    name, _, data = event.strip().partition("\ndata: ")
    return name.removeprefix("event: "), data.encode()


class _ErrorObject(msgspec.Struct):
    message: str = "the engine gave this request up"


class _ErrorEvent(msgspec.Struct):
    error: _ErrorObject = msgspec.field(default_factory=_ErrorObject)


def _message(data: bytes) -> str:
    return msgspec.json.decode(data, type=_ErrorEvent).error.message


def _refusal(error: Exception, task: Task, body: bytes) -> EngineError:
    """With the client's word for the field at fault. A validation error in here is of vLLM's own answer: a fault."""
    if isinstance(error, pydantic.ValidationError):
        logger.error("vLLM could not build its answer", exc_info=error)
        return EngineError(Failed(500, "the answer could not be built; see the server's log", default_type(500)))
    failed = refusal(error, prompt=task.schema.prompt).failed
    return EngineError(blamed(failed, body, prompt=task.schema.prompt, names=task.names))
