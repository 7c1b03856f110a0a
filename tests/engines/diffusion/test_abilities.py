"""What pipeline classes can do, over every class that diffusers has, and for the families that are served most."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
from diffusers.pipelines import auto_pipeline

from app.engines.diffusion.abilities import Abilities, Sizes, abilities, sizes

TASK_OF_MAPPING = {
    "TEXT2IMAGE": "text-to-image",
    "IMAGE2IMAGE": "image-to-image",
    "INPAINT": "inpaint",
    "TEXT2VIDEO": "text-to-video",
    "IMAGE2VIDEO": "image-to-video",
    "VIDEO2VIDEO": "video-to-video",
    "TEXT2AUDIO": "text-to-audio",
}


def all_classes() -> list[type]:
    names = {name for name in diffusers._import_structure["pipelines"] if name.endswith("Pipeline")}
    classes = [getattr(diffusers, name) for name in sorted(names)]
    return [cls for cls in classes if inspect.isclass(cls) and issubclass(cls, diffusers.DiffusionPipeline)]


@pytest.fixture(scope="module")
def everything() -> dict[type, Abilities]:
    return {cls: abilities(cls) for cls in all_classes()}


def test_every_class_is_labelled_and_its_parameters_are_plain(everything: dict[type, Abilities]) -> None:
    assert len(everything) > 280
    for cls, found in everything.items():
        assert json.loads(json.dumps(found.parameters)).keys() == found.parameters.keys()
        accepted = inspect.signature(cls.__call__).parameters
        assert set(found.parameters) | set(found.prompts) <= set(accepted)
        assert not set(found.parameters) & {*found.prompts, found.image_parameter, found.mask_parameter}
        assert bool(found.tasks) <= bool(found.output), cls


def test_no_parameter_takes_an_object_that_a_request_cannot_hold(everything: dict[type, Abilities]) -> None:
    names = {name for found in everything.values() for name in found.parameters}

    assert not names & {
        "generator",
        "latents",
        "prompt_embeds",
        "ip_adapter_image",
        "video",
        "conditions",
        "return_dict",
    }
    assert not [name for name in names if "callback" in name or name.endswith(("_kwargs", "_embeds", "_per_prompt"))]


@pytest.mark.parametrize("mapping", TASK_OF_MAPPING)
def test_the_labels_agree_with_the_mappings_of_diffusers(mapping: str, everything: dict[type, Abilities]) -> None:
    """Where diffusers counts a class to a task; an edit counts as image to image; two pictures are left out."""
    wanted = TASK_OF_MAPPING[mapping]
    classes = getattr(auto_pipeline, f"AUTO_{mapping}_PIPELINES_MAPPING").values()
    disagreeing = {
        cls.__name__
        for cls in classes
        if everything[cls].tasks and not everything[cls].tasks & {wanted, wanted.replace("image-to-image", "edit")}
    }

    guided = {name for name in disagreeing if "Control" in name}
    assert disagreeing - guided <= {"HeliosPipeline", "HeliosPyramidPipeline", "AnyFlowFARPipeline"}
    assert all(everything[getattr(diffusers, name)].tasks == {"edit"} for name in guided)


FAMILIES = {
    "StableDiffusionPipeline": ({"text-to-image"}, "images"),
    "StableDiffusionImg2ImgPipeline": ({"image-to-image"}, "images"),
    "StableDiffusionInpaintPipeline": ({"inpaint"}, "images"),
    "StableDiffusionInstructPix2PixPipeline": ({"edit"}, "images"),
    "StableDiffusionXLPipeline": ({"text-to-image"}, "images"),
    "StableDiffusion3Pipeline": ({"text-to-image"}, "images"),
    "FluxPipeline": ({"text-to-image"}, "images"),
    "FluxKontextPipeline": ({"text-to-image", "edit"}, "images"),
    "Flux2KleinPipeline": ({"text-to-image", "edit"}, "images"),
    "QwenImagePipeline": ({"text-to-image"}, "images"),
    "QwenImageEditPipeline": ({"edit"}, "images"),
    "QwenImageEditPlusPipeline": ({"edit"}, "images"),
    "ZImagePipeline": ({"text-to-image"}, "images"),
    "WanPipeline": ({"text-to-video"}, "frames"),
    "WanImageToVideoPipeline": ({"image-to-video"}, "frames"),
    "StableAudioPipeline": ({"text-to-audio"}, "audios"),
    "StableVideoDiffusionPipeline": ({"image-to-video"}, "frames"),
    "KandinskyV22PriorPipeline": (set(), ""),
    "MarigoldDepthPipeline": (set(), ""),
    "LLaDA2Pipeline": (set(), ""),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, everything: dict[type, Abilities]) -> None:
    found = everything[getattr(diffusers, name)]

    assert (found.tasks, found.output) == FAMILIES[name]


def test_parameters_of_a_pipeline_with_their_defaults() -> None:
    found = abilities(diffusers.QwenImageEditPlusPipeline)

    assert found.parameters == {
        "true_cfg_scale": 4.0,
        "height": None,
        "width": None,
        "num_inference_steps": 50,
        "sigmas": None,
        "guidance_scale": None,
        "max_sequence_length": 512,
    }
    assert found.prompts == ("prompt", "negative_prompt")
    assert (found.image_parameter, found.image_required, found.many_images) == ("image", True, True)


def test_pictures_that_are_needed_and_those_that_may_be_left_out() -> None:
    needed = {
        name: (found.takes_image, found.image_required, found.takes_mask, found.many_images)
        for name in ("FluxPipeline", "FluxInpaintPipeline", "Flux2KleinPipeline", "LTXImageToVideoPipeline")
        if (found := abilities(getattr(diffusers, name)))
    }

    assert needed == {
        "FluxPipeline": (False, False, False, False),
        "FluxInpaintPipeline": (True, True, True, False),
        "Flux2KleinPipeline": (True, False, False, True),
        "LTXImageToVideoPipeline": (True, True, False, False),
    }


def test_a_class_that_takes_one_prompt_at_a_time_does_not_batch() -> None:
    assert abilities(diffusers.FluxPipeline).batches_prompts
    assert not abilities(diffusers.DreamLitePipeline).batches_prompts


SIZES = {
    "sd": Sizes(8, 64, 64),
    "sdxl": Sizes(8, 64, 64),
    "sd3": Sizes(16, 64, 64),
    "flux": Sizes(16, 1024, 1024),
    "flux2klein": Sizes(16, 1024, 1024),
    "qwenimage": Sizes(16, 1024, 1024),
    "qwenimage_edit": Sizes(16, 1024, 1024),
    "zimage": Sizes(16, 1024, 1024),
    "wan": Sizes(16, 832, 480, 4),
    "wan_i2v": Sizes(32, 832, 480, 4),
    "stableaudio": Sizes(1, 0, 0),
}


@pytest.mark.parametrize("kind", SIZES)
def test_sizes(kind: str, tiny_pipeline: Callable[[str], Any]) -> None:
    assert sizes(tiny_pipeline(kind)) == SIZES[kind]


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3"])
def test_a_pipeline_draws_its_default_size(kind: str, tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline(kind)

    picture = pipe("a red circle", num_inference_steps=1).images[0]

    assert picture.size == (sizes(pipe).width, sizes(pipe).height)


@pytest.mark.parametrize("kind", ["sd", "sd3", "flux", "qwenimage", "zimage"])
def test_a_pipeline_draws_multiples_of_its_size(kind: str, tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline(kind)
    side = 64 + sizes(pipe).multiple

    assert pipe("a red circle", num_inference_steps=2, width=side, height=64).images[0].size == (side, 64)


@pytest.mark.parametrize("kind", ["sd", "sd3", "zimage"])
def test_some_pipelines_refuse_half_a_multiple(kind: str, tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline(kind)

    with pytest.raises(ValueError, match="divisible"):
        pipe("a red circle", num_inference_steps=2, width=64 + sizes(pipe).multiple // 2, height=64)


@pytest.mark.parametrize("kind", ["flux", "qwenimage"])
def test_others_draw_another_size_without_a_word(kind: str, tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline(kind)

    picture = pipe("a red circle", num_inference_steps=2, width=64 + sizes(pipe).multiple // 2, height=64).images[0]

    assert picture.size == (64, 64)
