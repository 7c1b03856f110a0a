from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline

from app.engines.diffusion.load_arguments import INSTEAD, NO_ONNX, TAKEN, load_arguments

CONSTRUCTOR = ["vae", "safety_checker", "boundary_ratio"]


def test_every_argument_of_from_pretrained_is_known() -> None:
    """It names them nowhere but in its body."""
    body = inspect.getsource(DiffusionPipeline.from_pretrained)

    assert set(re.findall(r'kwargs\.pop\("(\w+)"', body)) == TAKEN | NO_ONNX | INSTEAD.keys()


def test_json_becomes_what_python_takes() -> None:
    given = {
        "torch_dtype": "torch.bfloat16",
        "dtype": {"vae": "float32"},
        "max_memory": {"0": "10GB", "cpu": "20GB"},
        "variant": "fp16",
        "boundary_ratio": 0.5,
        "safety_checker": None,
        "config": "somewhere",
    }

    assert load_arguments(given, CONSTRUCTOR) == {
        "torch_dtype": torch.bfloat16,
        "dtype": {"vae": torch.float32},
        "max_memory": {0: "10GB", "cpu": "20GB"},
        "variant": "fp16",
        "boundary_ratio": 0.5,
        "safety_checker": None,
    }


def test_a_quantization_config_in_the_form_of_diffusers() -> None:
    backend = {"quant_backend": "bitsandbytes_4bit", "quant_kwargs": {"load_in_4bit": True}}
    given = {"quantization_config": backend | {"components_to_quantize": ["vae"]}}

    found = load_arguments(given, CONSTRUCTOR)["quantization_config"]

    assert (found.quant_backend, found.components_to_quantize) == ("bitsandbytes_4bit", ["vae"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"varient": "fp16"}, "no argument 'varient'; did you mean 'variant'"),
        ({"boundary": 1}, "no argument 'boundary'; did you mean 'boundary_ratio'"),
        ({"trust_remote_code": True}, "use --trust-remote-code in place of 'trust_remote_code'"),
        ({"cache_dir": "x"}, "use --download-dir"),
        ({"provider": "x"}, "ONNX"),
        ({"dtype": "int8"}, "dtype must be one of bfloat16, float16, float32"),
        ({"dtype": {"vae": 8}}, "got 8"),
        ({"quantization_config": {"method": "int8"}}, "for one by method there is --quantization-config"),
        ({"quantization_config": {"quant_backend": "none"}}, "is refused"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_arguments(given, CONSTRUCTOR)
