"""The Responses API: vLLM's serving class with ids that name this engine, and a store that cannot grow without end."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pydantic
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.engines.llm.bodies import Rule, only
from app.engines.llm.schema import Schema
from app.engines.llm.tasks import Answer, Task
from app.protocol.responses import new_id

_MOST_RESPONSES = 1000
_MOST_BYTES = 64 << 20
"""What is stored at most; the oldest response is forgotten first."""


def _few(count: Any) -> str | None:
    return None if not isinstance(count, int) or 0 <= count <= 20 else "it has to be from 0 to 20"


_REFUSED: dict[str, Rule] = {
    "top_logprobs": _few,
    "request_id": only(reason="the server chooses the ids of responses"),
    "conversation": only(reason="conversations are not kept here; use `previous_response_id`"),
    "prompt": only(reason="there are no stored prompts here"),
}
_HOSTED_TOOLS = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "container",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""What OpenAI's servers do themselves; vLLM would leave them out in silence."""
_IGNORED = frozenset({"safety_identifier", "prompt_cache_options", "prompt_cache_retention", "stream_options"})


class ResponseReference(pydantic.BaseModel):
    """The body of the tasks that ask for a stored response; made by the API worker."""

    response_id: str
    stream: bool = False
    starting_after: Annotated[int, pydantic.Field(ge=0)] | None = None


class Responses:
    """The three tasks, over vLLM's serving object; `instance` names the engine in the ids."""

    def __init__(self, state: SimpleNamespace, instance: str) -> None:
        self._serving = state.openai_serving_responses
        self._serving.enable_store = True
        self._instance = instance
        self._sizes: dict[str, int] = {}

    def tasks(self) -> dict[str, Task]:
        """By the names that API workers use."""
        reference = Schema(ResponseReference, prompt="response_id")
        refused = _REFUSED if self._serving.tool_server is not None else _REFUSED | {"tools": _functions_only}
        return {
            "responses": Task(
                Schema(ResponsesRequest, prompt="input", refused=refused, ignored=_IGNORED),
                self._create,
                names={"max_tokens": "max_output_tokens", "response_id": "previous_response_id"},
                detached=_in_background,
            ),
            "retrieve_response": Task(reference, self._retrieve),
            "cancel_response": Task(reference, self._cancel),
        }

    async def _create(self, request: ResponsesRequest) -> Answer:
        request.request_id = new_id(self._instance, uuid.uuid4().hex)
        if request.background and not request.store:
            raise _invalid("background", "a response in the background has to be stored: leave 'store' out")
        if request.store:
            self._remember(request)
        return await self._serving.create_responses(request)

    async def _retrieve(self, reference: ResponseReference) -> Answer:
        if reference.stream and reference.response_id not in self._serving.event_store:
            raise _invalid("stream", "only what was created with stream and background can be streamed again")
        return await self._serving.retrieve_responses(
            reference.response_id, starting_after=reference.starting_after, stream=reference.stream
        )

    async def _cancel(self, reference: ResponseReference) -> Answer:
        return await self._serving.cancel_responses(reference.response_id)

    def _remember(self, request: ResponsesRequest) -> None:
        """Count what vLLM will keep of it, and make room."""
        self._sizes[request.request_id] = len(msgspec.json.encode(request.input, enc_hook=str))
        while len(self._sizes) > _MOST_RESPONSES or sum(self._sizes.values()) > _MOST_BYTES:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            self._forget(oldest)

    def _forget(self, response_id: str) -> None:
        for store in (self._serving.response_store, self._serving.msg_store, self._serving.event_store):
            store.pop(response_id, None)


def _functions_only(tools: Any) -> str | None:
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    foreign = next((kind for kind in kinds if kind in _HOSTED_TOOLS), None)
    return None if foreign is None else f"there is no {foreign} tool here; only functions of the client can be called"


def _in_background(request: Any) -> bool:
    return bool(request.background)


def _invalid(param: str, message: str) -> EngineError:
    return EngineError(Failed(400, message, "invalid_request_error", param, "invalid_value"))
