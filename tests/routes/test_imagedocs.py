"""The documented bodies of the routes that draw are those that their structs judge."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.protocol.images import EditRequest, GenerationRequest, VariationRequest
from tests.routes.drawing import drawing

EDITS, VARIATIONS = "/v1/images/edits", "/v1/images/variations"


@pytest.fixture
async def document() -> Any:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(drawing().app), base_url="http://test") as client:
        return (await client.get("/openapi.json")).json()


def body(document: Any, path: str, kind: str = "application/json") -> Any:
    return document["paths"][path]["post"]["requestBody"]["content"][kind]["schema"]


def test_every_field_is_there(document: Any) -> None:
    generation = body(document, "/v1/images/generations")
    assert set(generation["properties"]) == set(GenerationRequest.__struct_fields__)
    assert set(body(document, EDITS)["properties"]) == set(EditRequest.__struct_fields__)
    form = body(document, VARIATIONS, "multipart/form-data")["properties"]
    assert set(form) == {*VariationRequest.__struct_fields__, "image"}
    assert generation["required"] == ["prompt"]


def test_bounds_and_choices(document: Any) -> None:
    fields = body(document, "/v1/images/generations")["properties"]
    assert (fields["n"]["type"], fields["n"]["minimum"], fields["n"]["maximum"]) == ("integer", 1, 10)
    assert (fields["guidance_scale"]["type"], fields["guidance_scale"]["maximum"]) == ("number", 20)
    assert fields["flow_shift"]["exclusiveMinimum"] == 0
    assert set(fields["output_format"]["enum"]) == {"png", "jpeg", "jpg", "webp", "avif"}
    kinds = {option["type"]: option for option in fields["lora"]["oneOf"]}
    assert "scale" in kinds["object"]["properties"]
    assert kinds["array"]["items"] == kinds["object"]


def test_forms_carry_files(document: Any) -> None:
    form = body(document, EDITS, "multipart/form-data")["properties"]
    assert form["image"]["items"] == form["mask"] == {"type": "string", "format": "binary"}
    assert body(document, VARIATIONS, "multipart/form-data")["properties"]["image"]["format"] == "binary"
