"""What /openapi.json says of the routes that make videos: made from the structs that judge their bodies."""

from __future__ import annotations

from dataclasses import dataclass

from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody

from app.protocol.videos import SyncVideoRequest, VideoRequest
from app.routes.imagedocs import FILE, body_schema, form_schema

_EXAMPLE = {"prompt": "a red balloon rises over a field", "seconds": "4"}


def _body(model: type[VideoRequest]) -> RequestBody:
    json = OpenAPIMediaType(schema=body_schema(model), example=_EXAMPLE)
    form = form_schema(model, {"input_reference": FILE})
    return RequestBody(required=True, content={"application/json": json, "multipart/form-data": form})


@dataclass
class VideoOperation(Operation):
    """POST /v1/videos with its body, JSON or a form."""

    def __post_init__(self) -> None:
        self.request_body = _body(VideoRequest)


@dataclass
class SyncOperation(Operation):
    """POST /v1/videos/sync likewise."""

    def __post_init__(self) -> None:
        self.request_body = _body(SyncVideoRequest)
