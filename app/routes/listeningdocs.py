"""What /openapi.json says of the routes that listen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    Reference,
    RequestBody,
    Schema,
)

from app.protocol.listening import TranscriptFormat

_FIELDS: dict[str, Reference | Schema] = {
    "file": Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY, description="The recording"),
    "model": Schema(type=OpenAPIType.STRING, description="A name of /v1/models; absent: the model that is served"),
    "language": Schema(type=OpenAPIType.STRING, description="What is spoken, by its ISO 639-1 code, such as en"),
    "prompt": Schema(type=OpenAPIType.STRING, description="Text to go on from; only for models that are told one"),
    "response_format": Schema(type=OpenAPIType.STRING, enum=list(get_args(TranscriptFormat)), default="json"),
    "temperature": Schema(type=OpenAPIType.NUMBER, minimum=0),
    "stream": Schema(type=OpenAPIType.BOOLEAN, description="Answer with server-sent events"),
    "max_completion_tokens": Schema(type=OpenAPIType.INTEGER, minimum=1),
    "seed": Schema(type=OpenAPIType.INTEGER),
}


def _form(own: dict[str, Reference | Schema]) -> RequestBody:
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=["file"],
        properties={**_FIELDS, **own},
        additional_properties=True,
        description="The fields used most; every other field of vLLM's request is understood too.",
    )
    return RequestBody(required=True, content={"multipart/form-data": OpenAPIMediaType(schema=schema)})


@dataclass
class TranscriptionOperation(Operation):
    """POST /v1/audio/transcriptions with its form."""

    def __post_init__(self) -> None:
        granularity = Schema(type=OpenAPIType.STRING, enum=["segment"])
        times = Schema(type=OpenAPIType.ARRAY, items=granularity, description="For formats that tell times")
        self.request_body = _form({"timestamp_granularities[]": times})


@dataclass
class TranslationOperation(Operation):
    """POST /v1/audio/translations with its form."""

    def __post_init__(self) -> None:
        into = Schema(type=OpenAPIType.STRING, description="A language other than English, where the model has it")
        self.request_body = _form({"to_language": into})
