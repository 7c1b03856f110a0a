"""Engine arguments become a typed struct, or the stage and the argument are named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.engines.arguments import read_arguments
from app.settings.schema import StageConfig


class Options(msgspec.Struct):
    dtype: str = "auto"
    device: str = ""
    lanes: int = 1
    default_sampling_params: dict[str, Any] = {}


def stage(devices: str = "", **engine_args: Any) -> StageConfig:
    sampling = {"seed": 3}
    return StageConfig(
        stage_id=2,
        name="talk",
        kind="speech",
        model="x",
        devices=devices,
        engine_args=engine_args,
        default_sampling_params=sampling,
    )


def test_arguments_are_converted_and_null_is_the_default() -> None:
    options = read_arguments(stage(dtype="HALF", lanes=None), Options, "speech")
    assert options == Options(dtype="float16", default_sampling_params={"seed": 3})


@pytest.mark.parametrize(
    ("devices", "given", "device"), [("cpu", {}, "cpu"), ("cpu", {"device": "cuda"}, "cuda"), ("0", {}, "")]
)
def test_a_stage_on_the_cpu_computes_there(devices: str, given: dict[str, Any], device: str) -> None:
    assert read_arguments(stage(devices, **given), Options, "speech").device == device


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lane": 2}, "engine argument 'lane' is unknown to the speech engine; did you mean 'lanes'?"),
        ({"default_sampling_params": {}}, "'default_sampling_params' is unknown"),
        ({"lanes": "2"}, "engine argument 'lanes': Expected `int`, got `str`; got '2'"),
        ({"dtype": "int8"}, "dtype must be auto, bfloat16, float16 or float32; got 'int8'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        read_arguments(stage(**given), Options, "speech")
    assert str(caught.value).startswith("stage 2 (talk): ")
    assert says in str(caught.value)
