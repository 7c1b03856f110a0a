"""Raw request bodies, judged: strict JSON, then our field rules, then vLLM's own request classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NoReturn, TypeVar

import pydantic
from vllm.exceptions import VLLMClientError

from app.engines.llm.errors import bad_request, refusal
from app.settings.problems import did_you_mean

RequestT = TypeVar("RequestT", bound=pydantic.BaseModel)
Json = dict[str, Any]
Rule = Callable[[Any], str | None]
"""Says of a field's value why it cannot be honoured, or None."""
Path = tuple[str | int, ...]

WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""Fields of OpenAI's schema that cannot change what is answered here."""


def only(*values: object, reason: str) -> Rule:
    """A rule that takes these values and no other."""
    return lambda value: None if value in values else reason


_CANNOT_HONOUR: dict[str, Rule] = {
    "store": only(False, reason="answers are not stored here; send false or leave it out"),
    "modalities": only(["text"], reason="this model answers in text only"),
    "audio": only(reason="this model does not speak"),
    "verbosity": only(reason="this model has no verbosity setting"),
    "web_search_options": only(reason="there is no web search here"),
    "functions": only(reason="use `tools` in place of the old `functions`"),
    "function_call": only(reason="use `tool_choice` in place of the old `function_call`"),
    "return_token_offsets": only(False, reason="it is for vLLM's render endpoints only"),
    "mm_payload": only("tensors", reason="it is for vLLM's render endpoints only"),
    "return_mm_kwargs": only(True, reason="it is for vLLM's render endpoints only"),
    "guided_json": only(reason="use `response_format` or `structured_outputs`"),
    "guided_regex": only(reason="use `structured_outputs`"),
    "guided_choice": only(reason="use `structured_outputs`"),
    "guided_grammar": only(reason="use `structured_outputs`"),
}
"""Known fields that are refused unless they ask for what happens anyway; null always counts as left out."""

_STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})


def parse(body: bytes, kind: type[RequestT], *, prompt: str) -> RequestT:
    """The request in `body`; `prompt` names the field that holds the prompt.

    Raises:
        EngineError: 400, with the path of the wrong field as `param`.
    """
    return validate(_judge_fields(decode(body), kind), kind.model_validate, [kind], prompt=prompt)


def validate(
    data: Json, validator: Callable[[Json], RequestT], kinds: Sequence[type[pydantic.BaseModel]], *, prompt: str
) -> RequestT:
    """What a validator of pydantic's makes of `data`, which fits one of `kinds`; `prompt` as in `parse`.

    Raises:
        EngineError: 400, with the path of the wrong field as `param`.
    """
    try:
        return validator(data)
    except pydantic.ValidationError as error:
        _refuse_invalid(error, data, prompt)
    except VLLMClientError as error:
        raise refusal(error, prompt=prompt) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # vLLM's validators look into the raw body and trip over shapes that they do not expect.
        _refuse_wrong_types(data, kinds)
        message = f"the request body has an unexpected shape ({type(error).__name__}: {error})"
        raise bad_request(message, param=prompt) from error


def _refuse_wrong_types(data: Json, kinds: Sequence[type[pydantic.BaseModel]]) -> None:
    for name, value in data.items():
        fields = [kind.model_fields[name] for kind in kinds if name in kind.model_fields]
        errors = [error for field in fields if (error := _type_error(field.annotation, value)) is not None]
        if errors and len(errors) == len(fields):
            raise bad_request(f"{name}: {errors[0]}", param=name, code="invalid_value")


def _type_error(annotation: Any, value: Any) -> str | None:
    try:
        pydantic.TypeAdapter(annotation).validate_python(value)
    except pydantic.ValidationError as error:
        return error.errors(include_url=False, include_context=False)[0]["msg"]
    except (VLLMClientError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "it has an unexpected shape"
    return None


def decode(body: bytes) -> Json:
    """The JSON object in `body`, by the letter of RFC 8259.

    Raises:
        EngineError: 400; not UTF-8, not JSON, a key twice, NaN or Infinity, or not an object.
    """
    try:
        data = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"the request body is not UTF-8: byte {error.start} is wrong", code="invalid_json") from error
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the request body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(data, dict):
        raise bad_request("the request body must be a JSON object", code="invalid_json")
    return data


def _unique(pairs: Sequence[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is there twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _judge_fields(data: Json, kind: type[pydantic.BaseModel]) -> Json:
    """`data` without the fields that have no effect.

    Raises:
        EngineError: 400; a field is unknown, or asks for what cannot be done.
    """
    refuse_unsupported(data, _CANNOT_HONOUR)
    kept = {name: value for name, value in data.items() if name in kind.model_fields}
    known = kind.model_fields.keys() | WITHOUT_EFFECT | _CANNOT_HONOUR.keys()
    refuse_unknown(data, known, "")
    if (best_of := data.get("best_of")) is not None and best_of != data.get("n", 1):
        raise bad_request("'best_of' other than 'n' cannot be honoured", param="best_of", code="unsupported_parameter")
    options = data.get("stream_options")
    if isinstance(options, dict):
        refuse_unknown(options, _STREAM_OPTIONS, "stream_options.")
    _refuse_unheard(data.get("messages"))
    return kept


def _refuse_unheard(messages: Any) -> None:
    """OpenAI's clients may send an earlier spoken answer as its id alone; its words would be missing.

    Raises:
        EngineError: 400; a message refers to sound that is not kept here.
    """
    for position, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict) and message.get("audio") is not None and not message.get("content"):
            path = f"messages[{position}].audio"
            reason = "spoken answers are not kept here; send the transcript as the content of the message"
            raise bad_request(f"{path} cannot be honoured: {reason}", param=path, code="unsupported_parameter")


def refuse_unsupported(data: Json, rules: Mapping[str, Rule]) -> None:
    """
    Raises:
        EngineError: 400; a field asks for what cannot be done.
    """
    for name, problem in rules.items():
        if (value := data.get(name)) is not None and (reason := problem(value)) is not None:
            raise bad_request(f"{name!r} cannot be honoured: {reason}", param=name, code="unsupported_parameter")


def refuse_unknown(data: Json, known: Set[str], prefix: str) -> None:
    """
    Raises:
        EngineError: 400; a field is not among `known`. `prefix` is the path of `data` in the body.
    """
    for name in data:
        if name not in known and name != "best_of":
            hint = did_you_mean(name, known)
            raise bad_request(
                f"unknown parameter {prefix + name!r}{hint}", param=prefix + name, code="unknown_parameter"
            )


def _refuse_invalid(error: pydantic.ValidationError, data: Json, prompt: str) -> NoReturn:
    path, message = _most_telling(error, data)
    param = _render(path)
    raise bad_request(f"{param or 'body'}: {message}", param=param or prompt, code="invalid_value") from error


def _most_telling(error: pydantic.ValidationError, data: Json) -> tuple[Path, str]:
    """Path and message of one problem: outside of unions the first, else the first of the branch that fits best."""
    branches: dict[Path, list[tuple[Path, str]]] = {}
    for problem in error.errors(include_url=False, include_context=False):
        path, branch = _split(problem["loc"], data, problem["type"] == "missing")
        branches.setdefault(branch, []).append((path, problem["msg"]))
    best = branches.get(()) or min(branches.values(), key=len)
    return max(best, key=lambda found: len(found[0]))


def _split(location: Path, data: Any, missing: bool) -> tuple[Path, Path]:
    """A pydantic location as a path in the body (with a missing last key), and the union branch it lies in, or ()."""
    path: list[str | int] = []
    branch: Path = ()
    for position, part in enumerate(location):
        if part in (data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()):
            data = data[part]
        elif not (missing and position == len(location) - 1):
            branch = branch or location[: position + 1]  # the name of a branch, not a part of the body
            continue
        path.append(part)
    return tuple(path), branch


def _render(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
