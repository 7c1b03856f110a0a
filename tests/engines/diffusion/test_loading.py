"""Loading: every format, and that what is loaded draws what diffusers' own loading draws."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from app.engines.diffusion import memory
from app.engines.diffusion.loading import load
from app.engines.diffusion.options import DiffusionOptions
from tests import tiny_diffusion, tiny_text
from tests.original_layout import save_original

Build = Callable[[str], Path]
PROMPT = "a red circle on a blue background"


def loaded(model: Path, say: Callable[[str], None] = lambda line: None, **options: Any) -> Any:
    return load(DiffusionOptions(device="cpu", **options), str(model), say)


def draw(pipe: Any) -> np.ndarray:
    """Two steps at 64x64, seed 0, in what the pipeline makes."""
    arguments: dict[str, Any] = {"num_inference_steps": 2, "generator": torch.Generator().manual_seed(0)}
    match type(pipe).__name__:
        case "StableAudioPipeline":
            arguments["audio_end_in_s"] = 0.2
        case "WanPipeline":
            arguments |= {"width": 32, "height": 32, "num_frames": 5, "output_type": "np"}
        case "Flux2KleinPipeline":
            arguments |= {"width": 64, "height": 64, "text_encoder_out_layers": (1, 2, 3), "output_type": "np"}
        case _:
            arguments |= {"width": 64, "height": 64, "output_type": "np"}
    return np.asarray(pipe(prompt=PROMPT, **arguments)[0])


@pytest.mark.parametrize(
    "kind", ["sd", "sdxl", "sd3", "flux", "flux2klein", "qwenimage", "zimage", "wan", "wan22", "stableaudio"]
)
def test_a_pipeline_is_loaded_as_diffusers_loads_it(kind: str, tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines(kind))
    stock = tiny_diffusion.open_pipeline(tiny_pipelines(kind))

    assert type(pipe) is type(stock)
    assert np.array_equal(draw(pipe), draw(stock))


def test_qwen_image_edit_is_loaded_without_torchvision(tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines("qwenimage_edit"))

    assert type(pipe) is diffusers.QwenImageEditPipeline
    prepared = pipe.processor(text=["<|image_pad|> make it green"], images=[np.zeros((56, 56, 3), np.uint8)])
    assert {"input_ids", "pixel_values", "image_grid_thw"} <= prepared.keys()


def test_progress_says_what_the_weights_need(tiny_pipelines: Build) -> None:
    lines: list[str] = []

    loaded(tiny_pipelines("flux"), lines.append)

    assert lines[0].startswith("the weights need 0.0 GiB (transformer 0.0, ")
    assert lines[1] == "loading FluxPipeline in float32 on cpu, 4 threads for weight files"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype(dtype: str, tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines("sd"), dtype=dtype)

    assert pipe.unet.dtype == pipe.text_encoder.dtype == pipe.vae.dtype == getattr(torch, dtype)


def test_dtype_by_component_from_the_load_arguments(tiny_pipelines: Build) -> None:
    pipe = loaded(
        tiny_pipelines("sd"), diffusers_load_kwargs={"dtype": {"vae": "float32", "default": "torch.bfloat16"}}
    )

    assert (pipe.vae.dtype, pipe.unet.dtype) == (torch.float32, torch.bfloat16)


def test_two_dtypes_contradict_each_other(tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match="name different dtypes"):
        loaded(tiny_pipelines("sd"), dtype="float16", diffusers_load_kwargs={"dtype": "bfloat16"})


def test_a_class_in_place_of_the_models_own(tiny_pipelines: Build) -> None:
    assert type(loaded(tiny_pipelines("flux"), model_class_name="FluxImg2ImgPipeline")) is diffusers.FluxImg2ImgPipeline


def test_a_class_that_does_not_exist(tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match="no pipeline class 'FluxPipelin'; did you mean FluxPipeline"):
        loaded(tiny_pipelines("flux"), model_class_name="FluxPipelin")


def test_a_directory_without_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"neither a model_index.json nor a modular_model_index.json"):
        loaded(tmp_path)


@pytest.mark.parametrize("kind", ["sd", "flux", "qwenimage", "wan", "zimage", "stableaudio", "sd3"])
def test_dummy_makes_weights_of_the_same_shape_and_no_other_part(kind: str, tiny_pipelines: Build) -> None:
    real = tiny_diffusion.open_pipeline(tiny_pipelines(kind))
    made, again = (loaded(tiny_pipelines(kind), diffusion_load_format="dummy", dtype="bfloat16") for _ in range(2))

    assert type(made) is type(real)
    for name, part in real.components.items():
        if isinstance(part, torch.nn.Module):
            weights = {k: (v.shape, torch.bfloat16) for k, v in part.state_dict().items() if v.is_floating_point()}
            found = {k: v for k, v in getattr(made, name).state_dict().items() if k in weights}
            assert {k: (v.shape, v.dtype) for k, v in found.items()} == weights
            assert all(torch.equal(v, getattr(again, name).state_dict()[k]) for k, v in found.items())
    assert made.scheduler.config == real.scheduler.config
    assert np.isfinite(draw(made.to(torch.float32))).all()


def test_dummy_reads_no_weights(tiny_pipelines: Build, tmp_path: Path) -> None:
    shutil.copytree(tiny_pipelines("flux"), tmp_path / "flux")
    for file in (tmp_path / "flux").rglob("*.safetensors"):
        file.unlink()

    assert draw(loaded(tmp_path / "flux", diffusion_load_format="dummy")).shape == (1, 64, 64, 3)


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


CODE = """
from diffusers import FluxPipeline


class MyPipeline(FluxPipeline):
    TAG = "mine"
    strength_of_red = 1

    def __init__(self, scheduler, vae, text_encoder, tokenizer, text_encoder_2, tokenizer_2, transformer, tint="none",
                 image_encoder=None, feature_extractor=None):
        super().__init__(scheduler, vae, text_encoder, tokenizer, text_encoder_2, tokenizer_2, transformer)
        self.register_to_config(tint=tint)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "pipeline.py").write_text(CODE)
    return folder


def custom(model: Path, trusted: bool, **arguments: Any) -> Any:
    return loaded(
        model,
        diffusion_load_format="custom_pipeline",
        custom_pipeline_args=arguments,
        trust_remote_code=trusted,
    )


def test_a_custom_pipeline_and_its_arguments(code: Path, tiny_pipelines: Build) -> None:
    pipe = custom(tiny_pipelines("flux"), True, custom_pipeline=str(code), tint="red", strength_of_red=7)

    assert (type(pipe).__name__, pipe.TAG, pipe.config.tint, pipe.strength_of_red) == ("MyPipeline", "mine", "red", 7)
    assert draw(pipe).shape == (1, 64, 64, 3)


def test_code_that_comes_with_the_model(code: Path, tiny_pipelines: Build, tmp_path: Path) -> None:
    shutil.copytree(tiny_pipelines("flux"), tmp_path / "flux")
    shutil.copy(code / "pipeline.py", tmp_path / "flux")

    assert type(custom(tmp_path / "flux", True)).__name__ == "MyPipeline"


def test_code_is_not_run_unless_it_is_trusted(code: Path, tiny_pipelines: Build) -> None:
    (code / "pipeline.py").write_text("raise SystemExit('it ran')")

    with pytest.raises(ValueError, match=r"pipeline.py would run in this server.*--trust-remote-code"):
        custom(tiny_pipelines("flux"), False, custom_pipeline=str(code))


def test_an_installed_class(tiny_pipelines: Build) -> None:
    pipe = custom(tiny_pipelines("flux"), False, pipeline_class="diffusers.FluxImg2ImgPipeline")

    assert type(pipe) is diffusers.FluxImg2ImgPipeline


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "brings no pipeline.py"),
        ({"custom_pipeline": "nowhere"}, "must be a Python file, or a directory"),
        ({"pipeline_class": "FluxPipeline"}, "must be package.module.Class"),
        ({"pipeline_class": "diffusers.Flux"}, "cannot be imported"),
        ({"pipeline_class": "diffusers.ModelMixin"}, "no subclass of diffusers.DiffusionPipeline"),
        ({"pipeline_class": "diffusers.FluxPipeline", "custom_pipeline": "x"}, "name one"),
        ({"pipeline_class": "diffusers.FluxPipeline", "tint": "red"}, "neither an argument nor an attribute 'tint'"),
    ],
)
def test_wrong_custom_arguments(arguments: dict[str, str], message: str, tiny_pipelines: Build) -> None:
    with pytest.raises(ValueError, match=message):
        custom(tiny_pipelines("flux"), True, **arguments)


def test_a_modular_pipeline_becomes_the_stock_one(tiny_pipelines: Build, tmp_path: Path) -> None:
    modular = diffusers.ModularPipeline.from_pretrained(str(tiny_pipelines("flux")))
    modular.load_components(dtype=torch.float32)
    modular.save_pretrained(str(tmp_path), overwrite_modular_index=True)
    (tmp_path / "model_index.json").unlink(missing_ok=True)

    pipe = loaded(tmp_path)

    assert type(pipe) is diffusers.FluxPipeline
    assert np.array_equal(draw(pipe), draw(tiny_diffusion.open_pipeline(tiny_pipelines("flux"))))


def test_a_modular_pipeline_without_all_its_parts(tiny_pipelines: Build, tmp_path: Path) -> None:
    where = {"pretrained_model_name_or_path": "owner/vae", "subfolder": ""}
    index = {"_class_name": "FluxModularPipeline", "vae": ["diffusers", "AutoencoderKL", where]}
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))

    with pytest.raises(ValueError, match=r"the component vae lies elsewhere \(owner/vae\)"):
        loaded(tmp_path)
    index["_class_name"] = "SomethingElseModularPipeline"
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="stands for no stock one"):
        loaded(tmp_path)


def test_no_guardrails(tmp_path: Path) -> None:
    directory = guarded(tmp_path)

    assert loaded(directory).safety_checker is not None
    pipe = loaded(directory, no_guardrails=True)

    assert pipe.safety_checker is None
    assert pipe.config.requires_safety_checker is False


def guarded(directory: Path) -> Path:
    """Stable Diffusion with a safety checker of a few weights."""
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig, CLIPImageProcessor

    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
    }
    pipe = tiny_diffusion.stable_diffusion()
    pipe.register_modules(
        safety_checker=StableDiffusionSafetyChecker(CLIPConfig(vision_config=vision, projection_dim=16)),
        feature_extractor=CLIPImageProcessor(crop_size=32, size={"shortest_edge": 32}),
    )
    pipe.save_pretrained(directory)
    return directory


def test_offloaded_pipelines_stay_in_host_memory(tiny_pipelines: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("moved")

    monkeypatch.setattr(diffusers.DiffusionPipeline, "to", refuse)

    loaded(tiny_pipelines("sd"), enable_cpu_offload=True)
    with pytest.raises(AssertionError, match="moved"):
        loaded(tiny_pipelines("sd"))


def test_quantized_while_it_is_read(tiny_pipelines: Build) -> None:
    pipe = loaded(tiny_pipelines("flux"), quantization="int8", dtype="bfloat16")

    assert type(pipe.transformer.transformer_blocks[0].attn.to_q.weight).__name__ == "Int8Tensor"
    assert np.isfinite(draw(pipe)).all()


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    tiny_pipelines: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 100_000)

    with pytest.raises(ValueError, match=r"the weights need .* this machine has 0.0 GiB free"):
        loaded(tiny_pipelines("sd"))


def test_arguments_that_one_file_cannot_have(tiny_pipelines: Build, tmp_path: Path) -> None:
    directory = tiny_pipelines("sd")
    file = save_original(tiny_diffusion.open_pipeline(directory), tmp_path / "whole.safetensors")

    with pytest.raises(ValueError, match="variant cannot be had with a model that is one file"):
        loaded(file, diffusers_load_kwargs={"config": str(directory), "variant": "fp16"})


def test_an_auxiliary_text_encoder(tmp_path: Path) -> None:
    directory = hidream(tmp_path / "hidream", tmp_path / "llama")

    pipe = loaded(directory, auxiliary_text_encoder=str(tmp_path / "llama"), dtype="bfloat16")

    assert type(pipe).__name__ == "HiDreamImagePipeline"
    assert (type(pipe.text_encoder_4).__name__, pipe.text_encoder_4.dtype) == ("LlamaForCausalLM", torch.bfloat16)
    assert pipe.text_encoder_4.config.output_hidden_states is True
    assert pipe.tokenizer_4("a red circle").input_ids


def hidream(directory: Path, llama: Path) -> Path:
    """A pipeline that is published without its fourth text encoder, and that text encoder."""
    import transformers

    clip, t5, tokenizer = tiny_text.clip_tokenizer(), tiny_text.t5_tokenizer(), tiny_text.qwen_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(llama)
    tokenizer.save_pretrained(llama)
    transformer = diffusers.HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=[32, 32],
        text_emb_dim=64,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(32, 32),
        llama_layers=(0, 1),
    )
    parts = {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": tiny_diffusion.stable_diffusion().vae,
        "text_encoder": tiny_text.clip_encoder(clip, projection=32),
        "tokenizer": clip,
        "text_encoder_2": tiny_text.clip_encoder(clip, projection=32),
        "tokenizer_2": clip,
        "text_encoder_3": tiny_text.t5_encoder(t5),
        "tokenizer_3": t5,
        "transformer": transformer,
    }
    diffusers.HiDreamImagePipeline(**parts, text_encoder_4=None, tokenizer_4=None).save_pretrained(directory)
    return directory


def test_an_auxiliary_text_encoder_that_nothing_needs(tiny_pipelines: Build, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FluxPipeline takes none here: it has all its text encoders"):
        loaded(tiny_pipelines("flux"), auxiliary_text_encoder=str(tmp_path))
