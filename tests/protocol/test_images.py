"""What a picture request may hold, in JSON and in forms."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from app.protocol.errors import ApiError, ErrorObject
from app.protocol.fields import FieldDecoder
from app.protocol.images import (
    REFUSED,
    Controls,
    EditRequest,
    GenerationRequest,
    VariationRequest,
    check_inputs,
    picture_task,
)
from app.protocol.pictures import PictureSource, PictureTask

_generation = FieldDecoder(GenerationRequest, REFUSED)
_edit = FieldDecoder(EditRequest, REFUSED)


def task(usual: int | None = None, /, **fields: Any) -> PictureTask:
    asked = _generation.decode(msgspec.json.encode({"prompt": "x"} | fields))
    asked.check()
    return picture_task(asked, asked.prompt, steps=usual)


def problem(usual: int | None = None, /, **fields: Any) -> ErrorObject:
    with pytest.raises(ApiError) as caught:
        task(usual, **fields)
    assert caught.value.status == 400
    return caught.value.body.error


def test_nothing_but_a_prompt() -> None:
    assert task() == PictureTask(prompt="x", base64=True)


def test_everything() -> None:
    made = task(
        n=3,
        size="1024x768",
        background="transparent",
        output_format="webp",
        output_compression=70,
        negative_prompt="",
        seed=2**32 - 1,
        num_inference_steps=200,
        guidance_scale=0,
        guidance_scale_2=20,
        true_cfg_scale=4.5,
        strength=1,
        flow_shift=3,
        layers=10,
        lora={"name": "ink"},
        extra_params={"eta": 0.5},
        moderation="low",
        user="u",
    )
    assert (made.n, made.width, made.height, made.transparent) == (3, 1024, 768, True)
    assert (made.format, made.compression) == ("webp", 70)
    assert (made.negative_prompt, made.seed, made.num_inference_steps) == ("", 2**32 - 1, 200)
    assert (made.guidance_scale, made.guidance_scale_2, made.true_cfg_scale, made.strength) == (0, 20, 4.5, 1)
    assert (made.flow_shift, made.layers, made.lora[0].name, made.extra) == (3, 10, "ink", {"eta": 0.5})


@pytest.mark.parametrize(("name", "format"), [("jpg", "jpeg"), ("jpeg", "jpeg"), ("avif", "avif"), (None, "png")])
def test_formats(name: str | None, format: str) -> None:
    assert task(output_format=name).format == format


def test_resolution_is_an_argument_of_the_pipeline() -> None:
    assert task(resolution=640, size="auto").extra == {"resolution": 640}
    assert problem(resolution=640, size="640x640").param == "resolution"
    assert problem(resolution=641).param == "resolution"


@pytest.mark.parametrize("quality", [None, "auto", "medium", "standard"])
def test_the_usual_quality_leaves_the_steps_alone(quality: str | None) -> None:
    assert task(20, quality=quality).num_inference_steps is None
    assert task(20, quality=quality, num_inference_steps=7).num_inference_steps == 7


@pytest.mark.parametrize(
    ("quality", "usual", "steps"), [("low", 20, 10), ("low", 1, 1), ("high", 20, 30), ("hd", 5, 8), ("high", 190, 200)]
)
def test_quality_is_a_number_of_steps(quality: str, usual: int, steps: int) -> None:
    assert task(usual, quality=quality).num_inference_steps == steps


def test_a_quality_that_cannot_be_had() -> None:
    assert (problem(quality="low").param, problem(quality="low").code) == ("quality", "unsupported_parameter")
    assert problem(20, quality="low", num_inference_steps=3).param == "quality"


@pytest.mark.parametrize(
    "size",
    [
        *("", "1024", "not-a-size", "1024xabc", "1024x", "0x1024", "x", "1024X1024", "-1x5", " 64x64", "64x64\n"),
        *("16384x64", "٦٤x64", "999999x9", "64x64x64", "Auto"),
    ],
)
def test_what_is_no_size(size: str) -> None:
    found = problem(size=size)
    assert (found.param, found.code) == ("size", "invalid_value")


OUT_OF_BOUNDS = [
    *(("n", value) for value in (0, 11, -1, 1.5, "2", True, 10**30)),
    *(("num_inference_steps", value) for value in (0, 201, -1, 1e9, "abc", True)),
    *((name, value) for name in ("guidance_scale", "guidance_scale_2", "true_cfg_scale") for value in (-1, 21, "7")),
    *(("layers", value) for value in (1, 11)),
    *(("seed", value) for value in (-1, 2**32, 2**64, 1.5, "1")),
    *(("strength", value) for value in (-0.1, 1.1)),
    *(("flow_shift", value) for value in (0, -1, 101)),
    *(("output_compression", value) for value in (-1, 101)),
    *(("partial_images", value) for value in (-1, 4)),
    *(("output_format", value) for value in ("gif", "svg", "PNG", "")),
    *(("quality", value) for value in ("xhigh", "best")),
    *(("background", value) for value in ("white", "")),
    *(("moderation", value) for value in ("off",)),
    *(("user", value) for value in (5, [])),
    *(("negative_prompt", value) for value in (5, ["x"], "x" * 32_001)),
    *(("extra_params", value) for value in ("x", [1])),
    ("prompt", "x" * 32_001),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_BOUNDS)
def test_out_of_bounds(field: str, value: Any) -> None:
    found = problem(**{field: value})
    assert (found.param, found.type, found.code) == (field, "invalid_request_error", "invalid_value")
    assert found.message.startswith(field)


def test_choices_are_named() -> None:
    assert "png, jpeg, jpg, webp, avif" in problem(output_format="gif").message
    message = problem(response_format="png").message
    assert "b64_json, url, file" in message
    assert "output_format" in message
    assert "output_format" not in problem(response_format="wav").message


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_others_take_is_refused_with_a_reason(name: str) -> None:
    found = problem(**{name: "x"})
    assert (found.param, found.code) == (name, "unsupported_parameter")
    assert REFUSED[name] in found.message


def test_unknown_fields() -> None:
    found = problem(num_inference_step=3)
    assert (found.param, found.code) == ("num_inference_step", "unknown_parameter")
    assert "Did you mean num_inference_steps?" in found.message
    assert "Did you mean" not in problem(zzz=1).message
    assert "num_inference_steps" in problem(steps=3).message


def test_fields_that_do_not_go_together() -> None:
    assert problem(background="transparent", output_format="jpg").param == "background"
    assert problem(partial_images=1).param == "partial_images"
    assert problem(stream=True, response_format="url").param == "response_format"
    assert problem(stream=True, response_format="file").param == "response_format"


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"a": 2**64}, "extra_params.a"),
        ({"a": [1, {"b": -(2**63) - 1}]}, "extra_params.a[1].b"),
        ({"a": [[[[[[[[[0]]]]]]]]]}, "extra_params"),
    ],
)
def test_what_cannot_go_to_the_replica(extra: dict[str, Any], param: str) -> None:
    body = b'{"prompt":"x","extra_params":' + json.dumps(extra).encode() + b"}"
    with pytest.raises(ApiError) as caught:
        picture_task(_generation.decode(body), "x")
    assert (caught.value.status, caught.value.body.error.param) == (400, param)


@pytest.mark.parametrize("depth", [100, 900, 990, 1100, 100_000])
def test_very_deep_bodies(depth: int) -> None:
    body = b'{"prompt":"x","extra_params":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    with pytest.raises(ApiError, match="nested"):
        picture_task(_generation.decode(body), "x")


def test_a_key_twice() -> None:
    with pytest.raises(ApiError, match="twice"):
        _generation.decode(b'{"prompt":"x","extra_params":{"a":1,"a":2}}')


# ------------------------------------------------------------------------------------------------ pictures in JSON


def edit(**fields: Any) -> EditRequest:
    return _edit.decode(msgspec.json.encode({"prompt": "x"} | fields))


def test_pictures_by_each_of_their_names() -> None:
    asked = edit(image="a", images=["b", {"image_url": "c"}], url=["d"])
    found = [(source.url, source.param) for source in asked.sources()]
    assert found == [("a", "image"), ("b", "images[0]"), ("c", "images[1].image_url"), ("d", "url[0]")]


@pytest.mark.parametrize("fields", [{"mask": "m"}, {"mask_image": "m"}, {"mask": {"image_url": "m"}}])
def test_masks_by_each_of_their_names(fields: dict[str, Any]) -> None:
    mask = edit(**fields).mask_source()
    assert mask is not None
    assert mask.url == "m"
    assert mask.param.startswith(next(iter(fields)))


def test_a_mask_twice() -> None:
    with pytest.raises(ApiError) as caught:
        edit(mask="a", mask_image="b").mask_source()
    assert caught.value.body.error.param == "mask_image"


def test_files_of_openai_are_not_kept() -> None:
    with pytest.raises(ApiError) as caught:
        edit(images=[{"file_id": "file-1"}])
    assert (caught.value.body.error.param, caught.value.body.error.code) == (
        "images[0].file_id",
        "unsupported_parameter",
    )


def test_fidelity() -> None:
    edit(input_fidelity="low").check()
    with pytest.raises(ApiError) as caught:
        edit(input_fidelity="high").check()
    assert caught.value.body.error.param == "input_fidelity"


@pytest.mark.parametrize("sources", [[], [PictureSource(url="x")] * 17, [PictureSource()], [PictureSource(url=" ")]])
def test_no_picture_an_empty_one_or_too_many(sources: list[PictureSource]) -> None:
    with pytest.raises(ApiError) as caught:
        check_inputs(sources)
    assert caught.value.body.error.param == "image"


# ------------------------------------------------------------------------------------------------ forms


def test_a_form() -> None:
    asked = _edit.convert(
        {
            "prompt": "x",
            "n": "3",
            "stream": "true",
            "guidance_scale": "7.5",
            "negative_prompt": "null",
            "lora": '{"name": "ink", "scale": 0.5}',
            "extra_params": '{"eta": 1}',
        }
    )
    assert (asked.n, asked.stream, asked.guidance_scale, asked.negative_prompt) == (3, True, 7.5, "null")
    assert picture_task(asked, "x").lora[0].scale == 0.5
    assert asked.extra_params == {"eta": 1}


def test_a_form_with_objects_in_parts() -> None:
    fields = {"lora[name]": "7", "lora[scale]": "0.5", "extra_params[eta]": "0.1", "extra_params[mode]": "fast"}
    asked = FieldDecoder(VariationRequest, REFUSED).convert(fields | {"extra_params[on]": "true"})
    [choice] = picture_task(asked, "").lora
    assert (choice.name, choice.scale) == ("7", 0.5)
    assert asked.extra_params == {"eta": 0.1, "mode": "fast", "on": True}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": "x"}, "n"),
        ({"n": ""}, "n"),
        ({"n": "0"}, "n"),
        ({"n": "1.5"}, "n"),
        ({"guidance_scale": "nan"}, "guidance_scale"),
        ({"guidance_scale": "inf"}, "guidance_scale"),
        ({"stream": "yes"}, "stream"),
        ({"lora": "ink"}, "lora"),
        ({"lora": '{"name":'}, "lora"),
        ({"lora": "5"}, "lora"),
        ({"extra_params": "[1]"}, "extra_params"),
        ({"lora": '{"name": "a"}', "lora[name]": "b"}, "lora"),
        ({"lora[nme]": "b"}, "lora.nme"),
        ({"lora[0][name]": "b"}, "lora[0][name]"),
        ({"modle": "b"}, "modle"),
        ({"": "b"}, ""),
    ],
)
def test_wrong_forms(fields: dict[str, str], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _edit.convert({"prompt": "x"} | fields)
    assert (caught.value.status, caught.value.body.error.param) == (400, param)


def test_the_bounds_are_those_of_the_documents() -> None:
    """One struct is the base of every route, so no route can have bounds of its own."""
    names = set(Controls.__struct_fields__)
    for model in (GenerationRequest, EditRequest, VariationRequest):
        assert names <= set(model.__struct_fields__)
        assert not names & set(model.__annotations__)
