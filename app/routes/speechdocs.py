"""What /openapi.json says of the routes that speak or make sound: made from the structs that judge their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from app.protocol.sounds import SoundRequest
from app.protocol.speech import SpeechRequest
from app.protocol.speechbatch import BatchItem, BatchRequest
from app.routes.imagedocs import body_schema


def _body(model: type[msgspec.Struct], example: dict[str, Any], **replaced: Schema) -> RequestBody:
    """A JSON body; `replaced` are fields of which the struct does not say all."""
    schema = body_schema(model)
    schema.properties = {**(schema.properties or {}), **replaced}
    return RequestBody(required=True, content={"application/json": OpenAPIMediaType(schema=schema, example=example)})


def _array(items: Schema) -> Schema:
    return Schema(type=OpenAPIType.ARRAY, items=items)


_EMBEDDING = _array(Schema(type=OpenAPIType.NUMBER))


@dataclass
class SpeechOperation(Operation):
    """POST /v1/audio/speech with its body."""

    def __post_init__(self) -> None:
        example = {"input": "Good morning.", "response_format": "wav"}
        self.request_body = _body(SpeechRequest, example, speaker_embedding=_EMBEDDING)


@dataclass
class BatchOperation(Operation):
    """POST /v1/audio/speech/batch with its body."""

    def __post_init__(self) -> None:
        item = body_schema(BatchItem)
        item.properties = {**(item.properties or {}), "speaker_embedding": _EMBEDDING}
        example = {"items": [{"input": "Good morning."}, {"input": "Good night."}], "response_format": "wav"}
        self.request_body = _body(BatchRequest, example, items=_array(item), speaker_embedding=_EMBEDDING)


@dataclass
class SoundOperation(Operation):
    """POST /v1/audio/generate with its body."""

    def __post_init__(self) -> None:
        self.request_body = _body(SoundRequest, {"input": "rain on a tin roof", "audio_length": 2})
