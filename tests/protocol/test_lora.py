from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.protocol.errors import ApiError
from app.protocol.fields import FieldDecoder
from app.protocol.images import REFUSED, GenerationRequest
from app.protocol.lora import lora_choices
from app.protocol.pictures import LoraChoice

_decoder = FieldDecoder(GenerationRequest, REFUSED)


def choices(lora: Any) -> list[LoraChoice]:
    return lora_choices(_decoder.decode(msgspec.json.encode({"prompt": "x", "lora": lora})).lora)


@pytest.mark.parametrize("name", ["name", "lora_name", "adapter"])
@pytest.mark.parametrize("path", ["path", "local_path", "lora_path", "lora_local_path"])
@pytest.mark.parametrize("scale", ["scale", "lora_scale"])
def test_every_name_of_every_part(name: str, path: str, scale: str) -> None:
    assert choices({name: "ink", path: "/l/ink", scale: 0.5, "int_id": 3}) == [LoraChoice("ink", "/l/ink", 0.5)]


def test_one_part_is_enough() -> None:
    assert choices({"name": "ink"}) == [LoraChoice("ink", "", 1.0)]
    assert choices([{"path": "/l/ink"}, {"name": "b", "scale": 0}]) == [
        LoraChoice("", "/l/ink"),
        LoraChoice("b", "", 0),
    ]
    assert choices(None) == []


@pytest.mark.parametrize(
    ("lora", "param"),
    [
        ({}, "lora"),
        ({"scale": 1}, "lora"),
        ([{"name": "a"}, {}], "lora[1]"),
        ({"name": ""}, "lora.name"),
        ({"name": "a", "adapter": "b"}, "lora.adapter"),
        ({"path": "a", "lora_path": "a"}, "lora.lora_path"),
        ({"name": "a", "scale": 11}, "lora.scale"),
        ({"name": "a", "scale": "1"}, "lora.scale"),
        ({"nme": "a"}, "lora.nme"),
        ([{"name": "a"}] * 9, "lora"),
        ("ink", "lora"),
    ],
)
def test_refused(lora: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        choices(lora)
    assert (caught.value.status, caught.value.body.error.param) == (400, param)
