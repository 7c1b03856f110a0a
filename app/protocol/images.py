"""/v1/images/*: what a request may hold, with the same bounds on every route that draws, and the task made of it."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import msgspec

from app.protocol.decoding import check_arguments
from app.protocol.errors import ApiError, invalid, unsupported
from app.protocol.lora import Lora, lora_choices
from app.protocol.pictures import PictureFormat, PictureSource, PictureTask

MAX_PICTURES = 10
MAX_INPUTS = 16
MAX_STEPS = 200
MAX_SIDE = 16383
"""Pixels: the longest side of a picture that every format can hold (WebP's is the limit)."""
MAX_PROMPT = 32_000
MAX_SEED = 2**32 - 1
RESOLUTIONS = (640, 1024)

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})", re.ASCII)
_QUALITY_STEPS = {"low": 0.5, "high": 1.5, "hd": 1.5}
"""By which part of its usual steps a picture is drawn."""

REFUSED = {
    "style": "describe the style in the prompt",
    "complexity": "it steers a model of OpenAI's",
    "frame_count": "pictures do not move here; /v1/videos makes videos",
    "frame_duration_ms": "pictures do not move here",
    "svg": "pictures are made of pixels",
    "markup": "draw into the picture, or send a mask",
    "file_id": "this server keeps no files of clients; send a URL or a data URL",
    "vae_use_slicing": "it is set for the whole server (--vae-use-slicing)",
    "vae_use_tiling": "it is set for the whole server (--vae-use-tiling)",
    "generator_device": "noise is drawn on the CPU, so that a seed gives one picture on every device",
    "num_frames": "it belongs to /v1/videos",
    "width": "write it as size, WIDTHxHEIGHT",
    "height": "write it as size, WIDTHxHEIGHT",
    "cfg_scale": "its name on this route is true_cfg_scale",
    "num_outputs_per_prompt": "its name on this route is n",
    "num_images_per_prompt": "its name here is n",
    "steps": "its name here is num_inference_steps",
    "guidance": "its name here is guidance_scale",
    "extra_args": "its name here is extra_params",
    "extra_body": "clients put its members at the root of the body",
    "reference_image": "send it as one more image",
    "bot_task": "it belongs to a pipeline of several stages",
    "sys_type": "it belongs to a pipeline of several stages",
    "system_prompt": "it belongs to a pipeline of several stages",
    "use_system_prompt": "it belongs to a pipeline of several stages",
    "return_stage_metrics": "/metrics has them",
}
"""Fields that clients of OpenAI's or vllm-omni's send, and why they are refused where a route does not have them."""

OutputFormat = Literal["png", "jpeg", "jpg", "webp", "avif"]
Quality = Literal["auto", "low", "medium", "high", "standard", "hd"]
Background = Literal["auto", "opaque", "transparent"]
ResponseFormat = Literal["b64_json", "url", "file"]
Task = Literal["image", "image_edit", "image_variation"]
Strength = Annotated[float, msgspec.Meta(ge=0, le=20)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_PROMPT)]


class Steering(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a pipeline draws, pictures or frames. None: not given, so the server's or the pipeline's default holds."""

    negative_prompt: Text | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Strength | None = None
    guidance_scale_2: Strength | None = None
    true_cfg_scale: Strength | None = None
    flow_shift: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    lora: Lora | list[Lora] | None = None
    extra_params: dict[str, Any] | None = None


class Controls(Steering, kw_only=True, forbid_unknown_fields=True):
    """How pictures are drawn, and as what they come."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_PICTURES)] | None = None
    size: str | None = None
    quality: Quality | None = None
    background: Background | None = None
    output_format: OutputFormat | None = None
    output_compression: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    strength: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    layers: Annotated[int, msgspec.Meta(ge=2, le=10)] | None = None
    resolution: int | None = None

    @property
    def format(self) -> PictureFormat:
        """The format of the files."""
        return "jpeg" if self.output_format == "jpg" else self.output_format or "png"

    @property
    def level(self) -> str:
        """The quality that an answer reports, in OpenAI's words."""
        return {"low": "low", "high": "high", "hd": "high"}.get(self.quality or "", "medium")


class ImageRequest(Controls, kw_only=True, forbid_unknown_fields=True):
    """What the three routes share. `user`, `safety_identifier` and `moderation` have no effect on a picture."""

    model: str | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    partial_images: Annotated[int, msgspec.Meta(ge=0, le=3)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    moderation: Literal["auto", "low"] | None = None

    def check(self) -> None:
        """
        Raises:
            ApiError: 400, fields that do not go together.
        """
        if self.stream and self.response_format not in (None, "b64_json"):
            raise invalid("response_format", "a stream carries pictures as b64_json only")
        if self.partial_images and not self.stream:
            raise invalid("partial_images", "is for streams: set stream to true as well")


class GenerationRequest(ImageRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/images/generations."""

    prompt: Text


class ImageReference(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's way to name a picture in JSON: its URL, or a data URL."""

    image_url: str


class EditRequest(ImageRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/images/edits. In a form the pictures are parts, which never come here (see `form_sources`)."""

    prompt: Text
    image: str | list[str] | None = None
    images: list[str | ImageReference] | None = None
    url: str | list[str] | None = None
    mask: str | ImageReference | None = None
    mask_image: str | None = None
    input_fidelity: Literal["low", "high"] | None = None

    def check(self) -> None:
        """As ImageRequest.check."""
        super().check()
        if self.input_fidelity == "high":
            raise unsupported("input_fidelity", "no pipeline here weighs its inputs by it; use strength")

    def sources(self) -> list[PictureSource]:
        """The pictures named in the body: image, images, url, in this order."""
        sources = []
        for field in ("image", "images", "url"):
            value = getattr(self, field) or []
            for position, item in enumerate(value if isinstance(value, list) else [value]):
                param = f"{field}[{position}]" if isinstance(value, list) else field
                sources.append(source_of(item, param))
        return sources

    def mask_source(self) -> PictureSource | None:
        """The mask named in the body.

        Raises:
            ApiError: 400, it is named twice.
        """
        if self.mask is not None and self.mask_image is not None:
            raise invalid("mask_image", "is another name of mask; give one of them")
        field = "mask" if self.mask is not None else "mask_image"
        value = getattr(self, field)
        return None if value is None else source_of(value, field)


class VariationRequest(ImageRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/images/variations, a form: its picture is a part. A prompt is not needed."""

    prompt: Text | None = None


def picture_task(
    asked: Controls,
    prompt: str,
    *,
    steps: int | None = None,
    images: list[PictureSource] | None = None,
    mask: PictureSource | None = None,
    base64: bool = True,
    previews: int = 0,
    progress: bool = False,
) -> PictureTask:
    """The task for a replica; `steps` are those that the pipeline takes by itself, None where that is not known.

    Raises:
        ApiError: 400, a value, or two that do not go together; `param` is the field.
    """
    width, height = _size(asked)
    if asked.background == "transparent" and asked.format == "jpeg":
        raise invalid("background", "JPEG knows no transparency; ask for output_format png or webp")
    extra = dict(asked.extra_params or {})
    check_arguments(extra, "extra_params")
    if asked.resolution is not None:
        extra["resolution"] = asked.resolution
    return PictureTask(
        prompt=prompt,
        negative_prompt=asked.negative_prompt,
        n=asked.n or 1,
        width=width,
        height=height,
        seed=asked.seed,
        num_inference_steps=_steps(asked, steps),
        guidance_scale=asked.guidance_scale,
        true_cfg_scale=asked.true_cfg_scale,
        guidance_scale_2=asked.guidance_scale_2,
        strength=asked.strength,
        flow_shift=asked.flow_shift,
        layers=asked.layers,
        extra=extra,
        lora=lora_choices(asked.lora),
        images=images or [],
        mask=mask,
        format=asked.format,
        compression=100 if asked.output_compression is None else asked.output_compression,
        transparent=asked.background == "transparent",
        previews=previews,
        progress=progress,
        base64=base64,
    )


def checked_prompt(prompt: str, param: str = "prompt") -> str:
    """The prompt, which has to say something.

    Raises:
        ApiError: 400, it is empty or blank.
    """
    if not prompt.strip():
        raise invalid(param, "must not be empty")
    return prompt


def check_inputs(sources: list[PictureSource], field: str = "image") -> None:
    """
    Raises:
        ApiError: 400, no picture, an empty one, or too many.
    """
    if not sources:
        message = f"{field} is required: a file, a URL or a data URL."
        raise ApiError(400, message, param=field, code="missing_required_parameter")
    if len(sources) > MAX_INPUTS:
        raise invalid(field, f"at most {MAX_INPUTS} pictures, got {len(sources)}")
    for source in sources:
        check_source(source)


def check_source(source: PictureSource) -> None:
    """
    Raises:
        ApiError: 400, there is nothing in it.
    """
    if not source.data and not source.url.strip():
        raise invalid(source.param, "is empty; it must be a picture")


def _size(asked: Controls) -> tuple[int, int]:
    """Width and height in pixels, 0 and 0 for the pipeline's own."""
    if asked.resolution is not None and asked.resolution not in RESOLUTIONS:
        raise invalid("resolution", f"must be one of {', '.join(map(str, RESOLUTIONS))}")
    if asked.resolution is not None and asked.size not in (None, "auto"):
        raise invalid("resolution", "cannot be given together with a size")
    return parsed_size(asked.size)


def parsed_size(size: str | None) -> tuple[int, int]:
    """Width and height in pixels, 0 and 0 for the pipeline's own.

    Raises:
        ApiError: 400, it is no size.
    """
    if size is None or size == "auto":
        return 0, 0
    match = _SIZE.fullmatch(size)
    if match is None or max(width := int(match[1]), height := int(match[2])) > MAX_SIDE:
        message = f"must be auto or WIDTHxHEIGHT, such as 1024x768, each 1 to {MAX_SIDE}; got {size[:40]!r}"
        raise invalid("size", message)
    return width, height


def _steps(asked: Controls, usual: int | None) -> int | None:
    factor = _QUALITY_STEPS.get(asked.quality or "")
    if factor is None:
        return asked.num_inference_steps
    if asked.num_inference_steps is not None:
        raise invalid("quality", f"{asked.quality} sets the number of steps, as num_inference_steps does; give one")
    if usual is None:
        raise unsupported("quality", "the served pipeline has no usual number of steps; use num_inference_steps")
    return min(MAX_STEPS, math.ceil(usual * factor))


def source_of(value: str | ImageReference, param: str) -> PictureSource:
    """The picture that a body names; `param` is where."""
    if isinstance(value, ImageReference):
        return PictureSource(url=value.image_url, param=f"{param}.image_url")
    return PictureSource(url=value, param=param)
