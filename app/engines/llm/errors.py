"""vLLM's errors, in the words and types that our clients see."""

from __future__ import annotations

import re
from typing import Any

from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.protocol.errors import default_type

_LENGTH_PARAMETERS = frozenset({"input_text", "input_tokens"})
_FIELD_FIRST = re.compile(r"`?([a-z][a-z_]*)`?(?:=\S+)? (?:must|cannot) ")
_LENGTH_WORDS = ("maximum context length", "maximum model length", "longer than the maximum")


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> EngineError:
    """A 400 for a request that the client has to change."""
    return EngineError(Failed(400, message, default_type(400), param, code))


def refusal(error: Exception, *, prompt: str) -> EngineError:
    """What an exception out of vLLM means for the client; `prompt` names the field that holds the prompt."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, EngineDeadError):
        return engine_dead()
    if isinstance(error, NotImplementedError):  # vLLM answers 501; what is asked for is not available to this client
        return bad_request(str(error))
    response = create_error_response(error)
    if isinstance(error, VLLMValidationError):  # str() repeats parameter and value, which may be a whole file
        response.error.message = str(error.args[0])
    return refusal_of(response.error.model_dump(), prompt=prompt)


def engine_dead() -> EngineError:
    """A 503: the engine process died under the request."""
    return EngineError(
        Failed(503, "the engine died while it worked on this request", default_type(503), None, "engine_dead")
    )


def refusal_of(error: dict[str, Any], *, prompt: str) -> EngineError:
    """The same for the `error` object of a vLLM ErrorResponse (message, type, param, code = HTTP status)."""
    status, message, param = int(error["code"]), str(error["message"]), error.get("param")
    if status == 404 and param == "model":
        return EngineError(Failed(404, message, default_type(404), "model", "model_not_found"))
    if status == 400 and _is_length(message, param):
        return EngineError(Failed(400, message, default_type(400), prompt, "context_length_exceeded"))
    if status == 400 and param is None:
        param = _field_in(message) or prompt
    return EngineError(Failed(status, message, default_type(status), param))


def _field_in(message: str) -> str | None:
    """vLLM's own checks often name the field in words only ("top_k must be ...", "stop cannot contain ...")."""
    match = _FIELD_FIRST.match(message)
    return match[1] if match else None


def raise_if_error(response: object, *, prompt: str) -> None:
    """Raise if vLLM returned an error in place of an answer.

    Raises:
        EngineError: with status, message and param of the response.
    """
    if isinstance(response, ErrorResponse):
        raise refusal_of(response.error.model_dump(), prompt=prompt)


def _is_length(message: str, param: str | None) -> bool:
    return param in _LENGTH_PARAMETERS or any(words in message for words in _LENGTH_WORDS)
