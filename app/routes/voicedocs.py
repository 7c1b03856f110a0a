"""What /openapi.json says of an upload of a voice: made from the struct that judges it."""

from __future__ import annotations

from dataclasses import dataclass

from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from app.protocol.voices import VoiceUpload
from app.routes.imagedocs import body_schema


@dataclass
class UploadOperation(Operation):
    """POST /v1/audio/voices with its body, a form or JSON."""

    def __post_init__(self) -> None:
        fields = body_schema(VoiceUpload)
        recording = {"audio_sample": Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)}
        form = Schema(
            type=OpenAPIType.OBJECT, required=fields.required, properties={**(fields.properties or {}), **recording}
        )
        example = {
            "name": "ada",
            "consent": "I am the speaker",
            "audio_sample": "data:audio/wav;base64,UklGRiQAAABXQVZF",
        }
        self.request_body = RequestBody(
            required=True,
            content={
                "multipart/form-data": OpenAPIMediaType(schema=form),
                "application/json": OpenAPIMediaType(schema=fields, example=example),
            },
        )
