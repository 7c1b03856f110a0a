"""What a pipeline cannot take is refused, by the name of the field and with what it can take."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
from PIL import Image

from app.engines.base import EngineError
from app.engines.diffusion.call import choose, plan
from app.engines.diffusion.inputs import Inputs
from app.engines.diffusion.offer import Offer
from app.protocol.pictures import PictureSource
from tests.engines.diffusion.asking import OTHER, Pipelines, noise, task
from tests.engines.diffusion.running import call_for, offer_of


@pytest.fixture(scope="module")
def offers(tiny_pipelines: Any) -> Any:
    """`offers(kind)`: what that kind offers without options."""
    from functools import cache

    from tests.tiny_diffusion import open_pipeline

    return cache(lambda kind: offer_of(open_pipeline(tiny_pipelines(kind)), kind))


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("sd", {"true_cfg_scale": 2.0}, "true_cfg_scale", "guidance_rescale, guidance_scale, num_inference_steps"),
    ("sd", {"strength": 0.5}, "strength", "StableDiffusionPipeline takes no strength"),
    ("sd", {"layers": 4}, "layers", "takes no layers"),
    ("sd", {"flow_shift": 3.0}, "flow_shift", "has no flow_shift"),
    ("wan22", {"extra": {"boundary_ratio": 2}}, "extra_params.boundary_ratio", "between 0 and 1"),
    ("wan", {"extra": {"flow_shift": "much"}}, "extra_params.flow_shift", "above 0"),
    ("sd", {"extra": {"boundary_ratio": 0.5}}, "extra_params.boundary_ratio", "has no boundary_ratio"),
    ("sd", {"extra": {"guidance": 1}}, "extra_params.guidance", "guidance_scale"),
    ("sd", {"extra": {"latents": [1]}}, "extra_params.latents", "takes no latents"),
    ("sd", {"extra": {"output_type": "latent"}}, "extra_params.output_type", "takes no output_type"),
    ("sd", {"extra": {"generator": 1}}, "extra_params.generator", "takes no generator"),
    ("sd", {"extra": {"num_images_per_prompt": 9}}, "extra_params.num_images_per_prompt", "takes no num_images"),
    ("sd", {"extra": {"callback_on_step_end": "x"}}, "extra_params.callback_on_step_end", "takes no callback"),
    ("sd", {"extra": {"cross_attention_kwargs": {}}}, "extra_params.cross_attention_kwargs", "takes no cross"),
    ("sd", {"extra": {"guidance_rescale": "much"}}, "extra_params.guidance_rescale", "is a number"),
    ("sd", {"extra": {"clip_skip": {"a": 1}}}, "extra_params.clip_skip", "a number, a string"),
    ("sd", {"extra": {"clip_skip": 99}}, "extra_params.clip_skip", "clip_skip is between 0 and"),
    ("sd", {"extra": {"clip_skip": -3}}, "extra_params.clip_skip", "got -3"),
    ("sd", {"extra": {"num_inference_steps": 4}}, "extra_params.num_inference_steps", "given twice"),
    ("sd", {"num_inference_steps": 0}, "num_inference_steps", "between 1 and 999"),
    ("sd", {"num_inference_steps": 1000}, "num_inference_steps", "between 1 and 999"),
    ("sd", {"width": 70, "height": 65}, "size", "multiples of 8; the nearest are 64x64 and 72x72"),
    ("flux", {"width": 72, "height": 64}, "size", "multiples of 16; the nearest are 64x64 and 80x64"),
    ("qwenimage", {"width": 8, "height": 64}, "size", "the nearest are 16x64"),
    ("sd", {"transparent": True}, "background", "no transparent background"),
    ("flux", {"negative_prompt": "x"}, "negative_prompt", "true_cfg_scale"),
    ("flux", {"flow_shift": 3.0}, "flow_shift", "has no flow_shift"),
    ("qwenimage", {"true_cfg_scale": 4.0}, "true_cfg_scale", "without negative_prompt"),
    ("qwenimage", {"guidance_scale": 4.0}, "guidance_scale", "true_cfg_scale"),
    ("flux2klein", {"negative_prompt": "x"}, "negative_prompt", "takes no negative prompt"),
    ("wan", {"extra": {"num_frames": 9}}, "extra_params.num_frames", "takes no num_frames"),
    ("wan", {"flow_shift": -1.0}, "flow_shift", "above 0"),
]


@pytest.mark.parametrize(("kind", "fields", "param", "said"), REFUSED)
def test_refused(kind: str, fields: dict[str, Any], param: str, said: str, offers: Any) -> None:
    with pytest.raises(EngineError) as caught:
        call_for(offers(kind), task(**fields))
    failed = caught.value.failed
    assert (failed.status, failed.type, failed.param) == (400, "invalid_request_error", param)
    assert said in failed.message


IMAGE, MASK = PictureSource(data=b"x", param="image"), PictureSource(data=b"x", param="mask")


@pytest.mark.parametrize(
    ("kind", "request_kind", "fields", "param"),
    [
        ("sd", "image_edit", {}, "image"),
        ("sd", "image", {"mask": MASK}, "image"),
        ("sd", "image_edit", {"images": [IMAGE, PictureSource(data=b"x", param="image[1]")]}, "image[1]"),
        ("wan", "image_edit", {"images": [IMAGE]}, "image"),
        ("wan", "image_edit", {"images": [IMAGE], "mask": MASK}, "mask"),
        ("qwenimage_edit", "image", {}, "image"),
    ],
)
def test_refused_pictures(kind: str, request_kind: str, fields: dict[str, Any], param: str, offers: Any) -> None:
    with pytest.raises(EngineError) as caught:
        choose(task(**fields), request_kind, offers(kind))
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)


@pytest.mark.parametrize(
    ("kind", "request_kind", "fields", "task_name"),
    [
        ("sd", "image", {}, "text-to-image"),
        ("sd", "image_edit", {"images": [IMAGE]}, "image-to-image"),
        ("sd", "image_edit", {"images": [IMAGE], "mask": MASK}, "inpaint"),
        ("sd", "image_variation", {"images": [IMAGE]}, "image-to-image"),
        ("flux2klein", "image_edit", {"images": [IMAGE, IMAGE]}, "edit"),
        ("qwenimage_edit", "image_edit", {"images": [IMAGE]}, "edit"),
        ("wan", "image", {}, "text-to-video"),
    ],
)
def test_what_a_task_carries_decides_how_it_is_run(
    kind: str, request_kind: str, fields: dict[str, Any], task_name: str, offers: Any
) -> None:
    assert choose(task(**fields), request_kind, offers(kind)).task == task_name


def test_the_request_is_stronger_than_the_stage_and_the_stage_than_the_call(tiny_pipeline: Pipelines) -> None:
    offer = offer_of(
        tiny_pipeline("sd"),
        default_sampling_params={"guidance_scale": 2.0, "seed": 5, "width": 128},
    )
    assert call_for(offer, task()).arguments["guidance_scale"] == 2.0
    assert call_for(offer, task(guidance_scale=3.0)).arguments["guidance_scale"] == 3.0
    assert call_for(offer, task(seed=None)).seed == 5
    call = call_for(offer, task(width=0, height=0))
    assert (call.width, call.height) == (128, 64)


def test_an_unknown_default_is_refused_at_the_start(tiny_pipeline: Pipelines) -> None:
    with pytest.raises(ValueError, match=r"'guidence_scale' .* no argument of StableDiffusionPipeline"):
        offer_of(tiny_pipeline("sd"), default_sampling_params={"guidence_scale": 2.0})
    with pytest.raises(ValueError, match="'output_type'"):
        offer_of(tiny_pipeline("sd"), default_sampling_params={"output_type": "latent"})


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"seed": "x"}, "seed"),
        ({"guidance_scale": "much"}, "guidance_scale among the sampling defaults is a number"),
        ({"flow_shift": 3.0}, "flow_shift"),
        ({"boundary_ratio": 0.5}, "boundary_ratio"),
    ],
)
def test_a_wrong_default_is_refused_at_the_start(defaults: dict[str, Any], said: str, tiny_pipeline: Pipelines) -> None:
    with pytest.raises(ValueError, match=said):
        offer_of(tiny_pipeline("sd"), default_sampling_params=defaults)


def test_a_pipeline_that_makes_nothing_of_a_request_is_refused_at_the_start() -> None:
    pipe = diffusers.DanceDiffusionPipeline.__new__(diffusers.DanceDiffusionPipeline)
    with pytest.raises(
        ValueError, match="DanceDiffusionPipeline makes audios; pipelines are served that make pictures"
    ):
        offer_of(pipe)


def test_more_pixels_than_the_server_draws(tiny_pipeline: Pipelines) -> None:
    offer = offer_of(tiny_pipeline("sd"), max_generated_image_size=64 * 64)
    with pytest.raises(EngineError, match="--max-generated-image-size") as caught:
        call_for(offer, task(width=72))
    assert caught.value.failed.param == "size"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"num_inference_steps": 1}, "num_inference_steps"),
        ({"num_inference_steps": 5, "strength": 0.1}, "strength"),
        ({"strength": 0.0}, "strength"),
    ],
)
def test_an_edit_needs_a_step(offers: Any, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(EngineError, match="leaves none") as caught:
        call_for(offers("sd"), task(images=[IMAGE], **asked), Inputs([noise()]), "image_edit")
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)


@pytest.mark.parametrize(("given", "size"), [((75, 66), (72, 64)), ((5, 200), (8, 200)), ((1000, 500), (176, 88))])
def test_an_edit_is_as_large_as_its_input(given: tuple[int, int], size: tuple[int, int], tiny_pipeline: Any) -> None:
    offer = offer_of(tiny_pipeline("sd"), max_generated_image_size=16_000)
    asked = task(images=[IMAGE], width=0, height=0)
    call = call_for(offer, asked, Inputs([noise(*given)]), "image_edit")
    assert (call.width, call.height) == size
    assert call.inputs.images[0].size == size


def test_image_and_mask_follow_the_size_that_is_asked_for(offers: Any) -> None:
    asked = task(images=[IMAGE], mask=MASK, width=96)
    inputs = Inputs([noise(40, 40)], Image.new("L", (40, 40)))
    call = call_for(offers("sd"), asked, inputs, "image_edit")
    assert call.arguments.items() >= {"width": 96, "height": 64}.items()


def key(offer: Offer, **fields: Any) -> Any:
    asked = task(**fields)
    return plan(asked, choose(asked, "image", offer), Inputs(), offer).key


@pytest.mark.parametrize(
    ("fields", "equal"),
    [
        ({"prompt": OTHER, "seed": 99, "n": 3, "previews": 2, "format": "jpeg"}, True),
        ({"guidance_scale": 1.5}, False),
        ({"num_inference_steps": 4}, False),
        ({"width": 128}, False),
        ({"negative_prompt": "x"}, False),
        ({"extra": {"guidance_rescale": 0.5}}, False),
    ],
)
def test_what_can_be_computed_together(fields: dict[str, Any], equal: bool, offers: Any) -> None:
    offer = offers("sd")
    assert (key(offer) == key(offer, **fields)) is equal


def test_pictures_with_an_input_are_computed_alone(offers: Any) -> None:
    asked = task(images=[IMAGE])
    assert call_for(offers("sd"), asked, Inputs([noise()]), "image_edit").key is None
