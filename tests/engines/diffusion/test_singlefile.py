"""Models that are one file draw what their directory draws."""

from __future__ import annotations

from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests import tiny_diffusion
from tests.engines.diffusion.opening import Build, draw, loaded
from tests.original_layout import save_original


def test_the_denoiser_from_one_file(tiny_pipelines: Build, tmp_path: Path) -> None:
    directory = tiny_pipelines("flux")
    stock = tiny_diffusion.open_pipeline(directory)
    other = diffusers.FluxTransformer2DModel.from_config(stock.transformer.config)
    save_file(
        {name: tensor.contiguous() for name, tensor in other.state_dict().items()}, tmp_path / "other.safetensors"
    )
    stock.transformer = other.eval()

    pipe = loaded(tmp_path / "other.safetensors", diffusers_load_kwargs={"config": str(directory)})

    assert np.array_equal(draw(pipe), draw(stock))


def test_a_whole_pipeline_from_one_file(tiny_pipelines: Build, tmp_path: Path) -> None:
    directory = tiny_pipelines("sd")
    stock = tiny_diffusion.open_pipeline(directory)
    file = save_original(stock, tmp_path / "whole.safetensors")

    pipe = loaded(file, diffusers_load_kwargs={"config": str(directory)})

    assert np.array_equal(draw(pipe), draw(stock))


def test_one_file_needs_the_rest_of_its_pipeline(tiny_pipelines: Build, tmp_path: Path) -> None:
    file = tiny_pipelines("flux") / "transformer" / "diffusion_pytorch_model.safetensors"

    with pytest.raises(ValueError, match="the other parts of its pipeline are needed"):
        loaded(file)
    with pytest.raises(ValueError, match="config must be a directory"):
        loaded(file, diffusers_load_kwargs={"config": "owner/name"})
    with pytest.raises(ValueError, match="config is for a model that is one file"):
        loaded(tiny_pipelines("flux"), diffusers_load_kwargs={"config": str(tmp_path)})


def gguf(model: torch.nn.Module, file: Path) -> Path:
    """The model's matrices in Q8_0, everything else in float32."""
    import gguf
    from gguf import GGMLQuantizationType, quants

    writer = gguf.GGUFWriter(file, "flux")
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            quantized = quants.quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, quantized, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("form", ["the model", "an option"])
def test_gguf(form: str, tiny_pipelines: Build, tmp_path: Path) -> None:
    directory = tiny_pipelines("flux")
    stock = tiny_diffusion.open_pipeline(directory)
    file = gguf(stock.transformer, tmp_path / "flux.gguf")

    if form == "the model":
        pipe = loaded(file, diffusers_load_kwargs={"config": str(directory)})
    else:
        pipe = loaded(directory, quantization_config={"method": "gguf", "gguf_model": str(file)})

    assert type(pipe.transformer.transformer_blocks[0].attn.to_q).__name__ == "GGUFLinear"
    assert 0 < np.abs(draw(pipe) - draw(stock)).max() < 0.1


def test_arguments_that_one_file_cannot_have(tiny_pipelines: Build, tmp_path: Path) -> None:
    directory = tiny_pipelines("sd")
    file = save_original(tiny_diffusion.open_pipeline(directory), tmp_path / "whole.safetensors")

    with pytest.raises(ValueError, match="variant cannot be had with a model that is one file"):
        loaded(file, diffusers_load_kwargs={"config": str(directory), "variant": "fp16"})
