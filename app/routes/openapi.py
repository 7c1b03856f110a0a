"""What /openapi.json says of the routes whose bodies go to the replica as they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Reference, RequestBody, Schema

from app.protocol.errors import ErrorBody

ERRORS = {
    status: ResponseSpec(ErrorBody, description=description, generate_examples=False)
    for status, description in {
        400: "The request is not valid; `param` names the field",
        401: "The API key is missing or unknown",
        404: "The model is not served here",
        413: "The body is larger than the server's limit",
        415: "The body is not declared as application/json",
        503: "No replica is available",
    }.items()
}

_string = Schema(type=OpenAPIType.STRING)
_integer = Schema(type=OpenAPIType.INTEGER, minimum=1)

_COMMON = {
    "model": Schema(type=OpenAPIType.STRING, description="A name of /v1/models; absent: the model that is served"),
    "stream": Schema(type=OpenAPIType.BOOLEAN, description="Answer with server-sent events"),
    "stream_options": Schema(type=OpenAPIType.OBJECT, properties={"include_usage": Schema(type=OpenAPIType.BOOLEAN)}),
    "n": _integer,
    "temperature": Schema(type=OpenAPIType.NUMBER, minimum=0),
    "top_p": Schema(type=OpenAPIType.NUMBER, maximum=1),
    "seed": Schema(type=OpenAPIType.INTEGER),
    "stop": Schema(one_of=[_string, Schema(type=OpenAPIType.ARRAY, items=_string)]),
}

_AUDIO = Schema(
    type=OpenAPIType.OBJECT,
    properties={"voice": _string, "format": _string},
    description="How the answer is spoken, where `modalities` have audio",
)
_CONTENT = Schema(one_of=[_string, Schema(type=OpenAPIType.ARRAY, items=Schema(type=OpenAPIType.OBJECT))])
_MESSAGE = Schema(type=OpenAPIType.OBJECT, required=["role"], properties={"role": _string, "content": _CONTENT})


def _body(required: str, fields: dict[str, Schema], example: dict[str, Any]) -> RequestBody:
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=[required],
        properties={**fields, **_COMMON},
        additional_properties=True,
        description="The fields used most; every other field of OpenAI's and vLLM's request is understood too.",
    )
    return RequestBody(required=True, content={"application/json": OpenAPIMediaType(schema=schema, example=example)})


@dataclass
class ChatOperation(Operation):
    """POST /v1/chat/completions with its body."""

    def __post_init__(self) -> None:
        self.request_body = _body(
            "messages",
            {
                "messages": Schema(type=OpenAPIType.ARRAY, items=_MESSAGE),
                "max_completion_tokens": _integer,
                "modalities": Schema(type=OpenAPIType.ARRAY, items=_string, description="text (default), audio, image"),
                "audio": _AUDIO,
            },
            {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
        )


@dataclass
class CompletionOperation(Operation):
    """POST /v1/completions with its body."""

    def __post_init__(self) -> None:
        self.request_body = _body(
            "prompt", {"prompt": _string, "max_tokens": _integer}, {"prompt": "The capital of France is"}
        )


@dataclass(frozen=True)
class Body:
    """The body of a route that relays: its required fields, those used most (JSON schema types), an example."""

    tag: str
    required: tuple[str, ...]
    fields: dict[str, OpenAPIType | Schema]
    example: dict[str, Any]


def operation(body: Body) -> type[Operation]:
    """An Operation with that body, for the `operation_class` of a handler."""
    properties: dict[str, Reference | Schema] = {
        name: kind if isinstance(kind, Schema) else Schema(type=kind)
        for name, kind in {"model": OpenAPIType.STRING, **body.fields}.items()
    }
    schema = Schema(
        type=OpenAPIType.OBJECT, required=list(body.required), properties=properties, additional_properties=True
    )
    content = OpenAPIMediaType(schema=schema, example=body.example)

    @dataclass
    class Relayed(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(required=True, content={"application/json": content})

    return Relayed
