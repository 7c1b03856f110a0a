from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from app.settings.weights import Weights, read_components, read_weights


def write(file: Path, **tensors: Any) -> None:
    """A safetensors file whose data is left out: headers are all that is read."""
    entries = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(struct.pack("<Q", len(header)) + header)


def test_all_files_are_summed(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", a=("BF16", [10, 20]), b=("I8", [100]))
    write(tmp_path / "vae" / "model.safetensors", c=("F32", [50]), scalar=("F32", []))
    assert read_weights(tmp_path) == Weights(351, 400 + 100 + 102)
    assert read_weights(tmp_path, "float32") == Weights(351, 800 + 100 + 204)


def test_a_part_of_a_model_is_known_by_the_names_of_its_weights(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {"thinker.a": ("F32", [10]), "talker.b": ("F32", [20]), "token2wav.c": ("F32", [30])}
    write(tmp_path / "model.safetensors", **tensors)
    assert read_weights(tmp_path, prefixes=("talker.",)) == Weights(20, 40)
    assert read_weights(tmp_path, prefixes=("token2wav.", "code2wav.")) == Weights(30, 60)


def test_where_there_are_none(tmp_path: Path) -> None:
    assert read_weights(tmp_path) is None


def test_a_diffusion_model_by_component(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"unet": ["diffusers", "X"], "vae": ["diffusers", "Y"]}')
    write(tmp_path / "unet" / "model-00001-of-00002.safetensors", a=("F32", [100]))
    write(tmp_path / "unet" / "model-00002-of-00002.safetensors", b=("F32", [100]))
    write(tmp_path / "vae" / "model.safetensors", c=("BF16", [10]))
    write(tmp_path / "vae" / "model.fp16.safetensors", c=("F16", [20]))
    write(tmp_path / "lora" / "model.safetensors", c=("BF16", [10]))
    write(tmp_path / "whole.safetensors", c=("BF16", [1000]))
    assert read_components(tmp_path) == {"unet": Weights(200, 400), "vae": Weights(10, 20)}
    assert read_components(tmp_path, "float32", "fp16") == {"unet": Weights(200, 800), "vae": Weights(20, 80)}


def test_single_files(tmp_path: Path) -> None:
    write(tmp_path / "flux.safetensors", a=("F32", [100]))
    (tmp_path / "flux.gguf").write_bytes(bytes(500))
    (tmp_path / "flux.ckpt").write_bytes(bytes(500))
    assert read_components(tmp_path / "flux.safetensors") == {"flux.safetensors": Weights(100, 200)}
    assert read_components(tmp_path / "flux.gguf") == {"flux.gguf": Weights(0, 500)}
    assert read_components(tmp_path / "flux.ckpt") == {}


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 1 << 40), struct.pack("<Q", 4) + b"nope"])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        read_weights(tmp_path)
