"""Siblings and shells: other pipelines, the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from app.engines.diffusion.abilities import abilities
from app.engines.diffusion.options import TaskType
from app.engines.diffusion.siblings import class_for, shell, siblings

Load = Callable[[str], Any]
PROMPT = "a red circle on a blue background"


def names(pipe: Any) -> dict[str, str]:
    return {task: cls.__name__ for task, cls in siblings(pipe).items()}


def draw(pipe: Any, **arguments: Any) -> np.ndarray:
    """Two steps at 64x64, seed 0; floats in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    result = pipe(prompt=PROMPT, num_inference_steps=2, generator=generator, output_type="np", **arguments)
    return np.asarray(result[0])


SIBLINGS = {
    "sd": {
        "text-to-image": "StableDiffusionPipeline",
        "image-to-image": "StableDiffusionImg2ImgPipeline",
        "inpaint": "StableDiffusionInpaintPipeline",
    },
    "sdxl": {
        "text-to-image": "StableDiffusionXLPipeline",
        "image-to-image": "StableDiffusionXLImg2ImgPipeline",
        "inpaint": "StableDiffusionXLInpaintPipeline",
    },
    "sd3": {
        "text-to-image": "StableDiffusion3Pipeline",
        "image-to-image": "StableDiffusion3Img2ImgPipeline",
        "inpaint": "StableDiffusion3InpaintPipeline",
    },
    "flux": {
        "text-to-image": "FluxPipeline",
        "image-to-image": "FluxImg2ImgPipeline",
        "inpaint": "FluxInpaintPipeline",
    },
    "flux2klein": {
        "text-to-image": "Flux2KleinPipeline",
        "edit": "Flux2KleinPipeline",
        "inpaint": "Flux2KleinInpaintPipeline",
    },
    "qwenimage": {
        "text-to-image": "QwenImagePipeline",
        "image-to-image": "QwenImageImg2ImgPipeline",
        "inpaint": "QwenImageInpaintPipeline",
    },
    "qwenimage_edit": {"edit": "QwenImageEditPipeline", "inpaint": "QwenImageEditInpaintPipeline"},
    "zimage": {
        "text-to-image": "ZImagePipeline",
        "image-to-image": "ZImageImg2ImgPipeline",
        "inpaint": "ZImageInpaintPipeline",
    },
    "wan": {"text-to-video": "WanPipeline", "video-to-video": "WanVideoToVideoPipeline"},
    "wan_i2v": {"image-to-video": "WanImageToVideoPipeline"},
    "wan_ti2v": {"text-to-video": "WanPipeline", "image-to-video": "WanImageToVideoPipeline"},
    "cogvideox": {"text-to-video": "CogVideoXPipeline"},
    "stableaudio": {"text-to-audio": "StableAudioPipeline"},
}


@pytest.mark.parametrize("kind", SIBLINGS)
def test_siblings_of_a_pipeline(kind: str, tiny_pipeline: Load) -> None:
    assert names(tiny_pipeline(kind)) == SIBLINGS[kind]


@pytest.mark.parametrize("kind", SIBLINGS)
def test_shells_share_every_module_and_change_none(kind: str, tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline(kind)
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.to(torch.bfloat16)
    before = weights(pipe)

    for cls in {*siblings(pipe).values(), None}:
        made = shell(pipe, cls)

        assert type(made) is (cls or type(pipe))
        assert weights(made) == before
        assert all(part is pipe.components.get(name) for name, part in made.components.items() if name != "scheduler")
        assert made.scheduler is not pipe.scheduler
        assert made.scheduler.config == pipe.scheduler.config
        assert made.parameters.items() >= {k: v for k, v in pipe.parameters.items() if k in made.parameters}.items()
    assert weights(pipe) == before


def test_a_checkpoint_for_both_draws_from_a_picture_as_its_class_does(tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline("wan_ti2v")
    how = {"image": Image.new("RGB", (64, 64), "red"), "num_frames": 5, "height": 64, "width": 64}
    stock = diffusers.WanImageToVideoPipeline(**pipe.components, expand_timesteps=True)
    stock.set_progress_bar_config(disable=True)
    made = shell(pipe, siblings(pipe)["image-to-video"])
    assert np.array_equal(draw(made, **how), draw(stock, **how))


@pytest.mark.parametrize(
    ("task_type", "own", "index", "chosen"),
    [
        ("t2i", "QwenImagePipeline", {}, "QwenImagePipeline"),
        ("i2i", "QwenImagePipeline", {}, "QwenImageImg2ImgPipeline"),
        ("inpaint", "StableDiffusionXLPipeline", {}, "StableDiffusionXLInpaintPipeline"),
        ("i2i", "QwenImageEditPipeline", {}, "QwenImageEditPipeline"),
        ("i2i", "Flux2KleinPipeline", {}, "Flux2KleinPipeline"),
        ("t2v", "WanPipeline", {"expand_timesteps": True}, "WanPipeline"),
        ("i2v", "WanPipeline", {"expand_timesteps": True}, "WanImageToVideoPipeline"),
        ("v2v", "WanPipeline", {}, "WanVideoToVideoPipeline"),
        ("i2v", "LTXPipeline", {}, "LTXImageToVideoPipeline"),
    ],
)
def test_the_class_for_a_task(task_type: TaskType, own: str, index: dict[str, Any], chosen: str) -> None:
    assert class_for(task_type, getattr(diffusers, own), index).__name__ == chosen


@pytest.mark.parametrize(
    ("task_type", "own", "told"),
    [
        ("i2v", "WanPipeline", "beside WanPipeline; it can be t2v, v2v"),
        ("t2v", "QwenImagePipeline", "beside QwenImagePipeline; it can be t2i, i2i, inpaint"),
        ("t2i", "StableAudioPipeline", "beside StableAudioPipeline; leave it out"),
    ],
)
def test_a_task_that_the_weights_were_not_made_for(task_type: TaskType, own: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"--task-type {task_type}: there is no pipeline for that {told}"):
        class_for(task_type, getattr(diffusers, own), {})


def weights(pipe: Any) -> dict[str, tuple[int, torch.dtype]]:
    """Where every tensor of the pipeline lies, and its type."""
    return {
        f"{part}.{name}": (tensor.data_ptr(), tensor.dtype)
        for part, module in pipe.components.items()
        if isinstance(module, torch.nn.Module)
        for name, tensor in module.state_dict().items()
    }


@pytest.mark.parametrize("kind", ["sd", "flux", "zimage"])
def test_a_shell_draws_what_its_pipeline_draws_and_leaves_it_alone(kind: str, tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline(kind)
    size = {"width": 64, "height": 64}
    wanted = draw(pipe, **size)
    attributes, steps = set(vars(pipe)), pipe.scheduler.timesteps.tolist()

    first = shell(pipe)
    first(PROMPT, num_inference_steps=3, generator=torch.Generator().manual_seed(1), **size)

    assert np.array_equal(draw(shell(pipe), **size), wanted)
    assert (set(vars(pipe)), pipe.scheduler.timesteps.tolist()) == (attributes, steps)
    assert np.array_equal(draw(pipe, **size), wanted)


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux", "qwenimage", "zimage"])
def test_siblings_run(kind: str, tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline(kind)
    found = siblings(pipe)
    picture = Image.new("RGB", (64, 64), "red")
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (16, 16, 48, 48))

    size = {"width": 64, "height": 64} if "width" in abilities(found["image-to-image"]).parameters else {}

    varied = draw(shell(pipe, found["image-to-image"]), image=picture, strength=1.0, **size)
    painted = draw(shell(pipe, found["inpaint"]), image=picture, mask_image=mask, strength=1.0, **size)

    assert varied.shape == painted.shape == (1, 64, 64, 3)
    assert not np.array_equal(varied, painted)


def test_two_requests_do_not_see_each_others_schedule(tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline("sd")
    one, other = shell(pipe), shell(pipe)

    one.scheduler.set_timesteps(4)
    other.scheduler.set_timesteps(7)

    assert (len(one.scheduler.timesteps), len(other.scheduler.timesteps)) == (4, 7)


def test_a_changed_scheduler_is_kept(tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline("wan")
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, flow_shift=7.0)

    assert shell(pipe).scheduler.config.flow_shift == 7.0
    assert shell(pipe, siblings(pipe)["video-to-video"]).scheduler.config.flow_shift == 7.0


def test_a_class_that_would_leave_a_model_unused_is_no_sibling(tiny_pipeline: Load) -> None:
    assert names(tiny_pipeline("wan22")) == {"text-to-video": "WanPipeline"}


def test_both_transformers_and_their_boundary_go_along(tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline("wan22")

    made = shell(pipe)

    assert made.transformer_2 is pipe.transformer_2
    assert made.config.boundary_ratio == 0.875


def test_offloading_goes_along(tiny_pipeline: Load) -> None:
    pipe = tiny_pipeline("sd")
    pipe.enable_model_cpu_offload(device="cpu")
    wanted = draw(pipe)

    for _ in range(2):
        assert np.array_equal(draw(shell(pipe)), wanted)
    edited = shell(pipe, siblings(pipe)["image-to-image"])
    assert draw(edited, image=Image.new("RGB", (64, 64)), strength=1.0).shape == wanted.shape
    assert len(edited._all_hooks) == len(pipe._all_hooks)
