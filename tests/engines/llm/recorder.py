"""A request without a network: keeps its events, and puts an answer together as an API worker would."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine

Json = dict[str, Any]


class Recorder:
    """Implements app.engines.base.Request; `funded` is the client's credit, `handed_on` what the next stage got."""

    def __init__(self, kind: str, body: bytes, *, wants_tensors: bool = False) -> None:
        self.request_id = "recorded"
        self.kind = kind
        self.model = ""
        self.body = body
        self.wants_tensors = wants_tensors
        self.events: list[m.AnyEvent] = []
        self.handed_on: list[dict[str, Tensor]] = []
        self.funded = asyncio.Event()
        self.funded.set()

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)

    async def ready(self) -> None:
        await self.funded.wait()

    def emit_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.handed_on.append(
            {name: Tensor(x.dtype, x.shape, memoryview(bytes(x.data))) for name, x in tensors.items()}
        )

    def answer(self) -> Json:
        """Everything the events say, merged: choices by index, usage, extra fields."""
        choices: defaultdict[int, Json] = defaultdict(lambda: {"text": "", "finish": []})
        usage: m.Usage | None = None
        extra: Json = {}
        assert self.events[0] == m.Accepted()
        assert self.events[-1] == m.Done()
        for event in self.events[1:-1]:
            match event:
                case m.Delta(index, text, _):
                    choices[index]["text"] += text
                case m.Chunk(index, fields):
                    _merge(choices[index], json.loads(fields))
                case m.Finish(index, reason, stop_reason):
                    choices[index]["finish"].append((reason, json.loads(stop_reason)))
                case m.Usage():
                    usage = event
                case m.Extra(fields):
                    extra |= json.loads(fields)
                case _:
                    raise AssertionError(f"{event} inside an answer")
        assert usage is not None
        counts = {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens}
        return {"choices": dict(choices), "usage": counts | json.loads(usage.details or b"{}"), "extra": extra}


def _merge(choice: Json, fields: Json) -> None:
    message = fields.pop("delta", None) or fields.pop("message", None) or {}
    message.pop("role", None)  # the API worker writes it
    choice["text"] += message.pop("content", None) or ""
    choice["text"] += fields.pop("text", None) or ""
    for name, value in (message | fields).items():
        choice.setdefault(name, []).append(value)


def recorder(kind: str, body: Json | bytes) -> Recorder:
    return Recorder(kind, body if isinstance(body, bytes) else json.dumps({"model": "tiny"} | body).encode())


async def run(engine: LlmEngine, kind: str, body: Json | bytes) -> Recorder:
    """Run one request to its end."""
    request = recorder(kind, body)
    async with asyncio.timeout(60):
        await engine.run(request)
    return request


async def refusal(engine: LlmEngine, kind: str, body: Json | bytes) -> m.Failed:
    """The Failed of a request that must be refused before it is accepted."""
    request = recorder(kind, body)
    try:
        async with asyncio.timeout(60):
            await engine.run(request)
    except EngineError as error:
        assert request.events == []
        return error.failed
    raise AssertionError(f"accepted: {request.events}")


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something that has no event of its own."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
