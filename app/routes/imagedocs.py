"""What /openapi.json says of the routes that draw: made from the structs that judge their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from app.protocol.images import EditRequest, GenerationRequest, VariationRequest

_BOUNDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMinimum": "exclusive_minimum",
    "minLength": "min_length",
    "maxLength": "max_length",
    "enum": "enum",
}
FILE = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
_FILES = Schema(type=OpenAPIType.ARRAY, items=FILE)


def body_schema(model: type[msgspec.Struct]) -> Schema:
    """The JSON schema of a request struct."""
    (schema,), components = msgspec.json.schema_components([model])
    return _schema(components[schema["$ref"].rpartition("/")[2]], components)


def _schema(found: dict[str, Any], components: dict[str, Any]) -> Schema:
    if "$ref" in found:
        found = components[found["$ref"].rpartition("/")[2]]
    if "anyOf" in found:
        options = [option for option in found["anyOf"] if option != {"type": "null"}]
        if len(options) > 1:
            return Schema(one_of=[_schema(option, components) for option in options])
        found = options[0]
    rest: dict[str, Any] = {ours: found[theirs] for theirs, ours in _BOUNDS.items() if theirs in found}
    if isinstance(found.get("items"), dict):
        rest["items"] = _schema(found["items"], components)
    if "properties" in found:
        rest["properties"] = {name: _schema(field, components) for name, field in found["properties"].items()}
        rest["required"] = found.get("required", [])
    kind = OpenAPIType(found.get("type", "string"))
    return Schema(type=kind, **rest)


def form_schema(model: type[msgspec.Struct], files: dict[str, Schema]) -> OpenAPIMediaType:
    """The form of a request struct, with parts that are files beside its fields."""
    fields = body_schema(model)
    return OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.OBJECT, required=fields.required, properties={**(fields.properties or {}), **files}
        )
    )


@dataclass
class GenerationOperation(Operation):
    """POST /v1/images/generations with its body."""

    def __post_init__(self) -> None:
        example = {"prompt": "a red circle on a blue background", "n": 1}
        json = OpenAPIMediaType(schema=body_schema(GenerationRequest), example=example)
        self.request_body = RequestBody(required=True, content={"application/json": json})


@dataclass
class EditOperation(Operation):
    """POST /v1/images/edits with its body, JSON or a form."""

    def __post_init__(self) -> None:
        picture = "data:image/png;base64,iVBORw0KGgo="
        json = OpenAPIMediaType(
            schema=body_schema(EditRequest), example={"prompt": "make it green", "images": [{"image_url": picture}]}
        )
        form = form_schema(EditRequest, {"image": _FILES, "mask": FILE})
        self.request_body = RequestBody(required=True, content={"application/json": json, "multipart/form-data": form})


@dataclass
class VariationOperation(Operation):
    """POST /v1/images/variations with its form."""

    def __post_init__(self) -> None:
        form = form_schema(VariationRequest, {"image": FILE})
        self.request_body = RequestBody(required=True, content={"multipart/form-data": form})
