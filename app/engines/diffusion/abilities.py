"""What a pipeline class can do, told by the class and the signature of its call alone: no weight is read.

`sizes` asks a loaded pipeline what its class cannot tell: which sizes it draws.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from diffusers.utils import BaseOutput

from app.engines.diffusion import oddities

Output = Literal["images", "frames", "audios", ""]

_MEDIA: dict[str, Output] = {
    "images": "images",
    "image": "images",
    "frames": "frames",
    "video": "frames",
    "audios": "audios",
}
_IMAGE_PARAMETERS = ("image", "images", "input_images", "reference_image", "control_image", "cond_image")
_MASK_PARAMETERS = ("mask_image", "mask")
_NOT_FOR_REQUESTS = re.compile(
    r"(neg(ative)?_)?prompt(_\d)?$|video$|generator$|return_dict$|output_type$|num_\w+_per_prompt$|\w*callback|_"
    r"|\w*(_kwargs|latents|_embeds|_image|_mask|conditions)$"
)
_OBJECTS = re.compile(r"Tensor|Image\b|ndarray|Generator|Callable|Output|\b[Dd]ict\b")
_PLAIN = (type(None), bool, int, float, str, list, tuple)


class Abilities(msgspec.Struct, frozen=True):
    """`tasks` is empty for a class that makes no pictures, videos or sound from what a request can hold.

    `output_field` is the attribute of the call's result that holds the `output`. `parameters` are what a request may
    set beside prompts, pictures and their number, with defaults (None where there is none); `prompts` the texts that
    it takes. `image_parameter` and `mask_parameter` are "" where there is none. `many_images`: one picture is made of
    several. `batches_prompts`: one call takes a list of prompts.
    """

    class_name: str
    tasks: frozenset[str]
    output: Output
    output_field: str
    parameters: dict[str, Any]
    prompts: tuple[str, ...]
    image_parameter: str
    image_required: bool
    mask_parameter: str
    many_images: bool
    batches_prompts: bool

    @property
    def takes_image(self) -> bool:
        return bool(self.image_parameter)

    @property
    def takes_mask(self) -> bool:
        return bool(self.mask_parameter)


class Sizes(msgspec.Struct, frozen=True):
    """In pixels: width and height must be multiples of `multiple`; the size that is drawn where none is asked for.

    `frame_step`: a video has one frame more than a multiple of it.
    """

    multiple: int
    width: int
    height: int
    frame_step: int = 1


def abilities(cls: type) -> Abilities:
    """Never raises for a pipeline class, whatever it is."""
    call = _call_parameters(cls)
    image = next((name for name in _IMAGE_PARAMETERS if name in call), "")
    mask = next((name for name in _MASK_PARAMETERS if name in call), "")
    field = _output_field(cls)
    required = bool(image) and _image_required(cls, call, image)
    parameters = {name: _default(p) for name, p in call.items() if name not in (image, mask) and _requestable(name, p)}
    output = _output(field, parameters)
    named = {image, mask, "video", "prompt", *parameters}
    lacking = [name for name, p in call.items() if p.default is inspect.Parameter.empty and name not in named]
    two_images = image not in ("", "control_image") and "control_image" in call
    tasks = oddities.TASKS.get(cls.__name__) or _tasks(output, call, image, mask, required)
    if lacking or two_images or cls.__name__ in oddities.NOT_SERVED:
        tasks = frozenset()
    return Abilities(
        class_name=cls.__name__,
        tasks=tasks,
        output=output,
        output_field=field,
        parameters=parameters,
        prompts=tuple(name for name in call if re.fullmatch(r"(neg(ative)?_)?prompt(_\d)?", name)),
        image_parameter=image,
        image_required=required,
        mask_parameter=mask,
        many_images=cls.__name__ in oddities.MANY_IMAGES,
        batches_prompts="generator" in call and "prompt" in call and _takes_list(call["prompt"]),
    )


def sizes(pipe: Any) -> Sizes:
    """Of a loaded pipeline; sizes of 0 for one that draws nothing."""
    call = _call_parameters(type(pipe))
    if "height" not in call and _output_field(type(pipe)) in ("audios", ""):
        return Sizes(1, 0, 0)
    scale = _scale(pipe)
    width, height = (
        default
        if isinstance(default := call[name].default if name in call else None, int)
        else _default_side(pipe, scale, name)
        for name in ("width", "height")
    )
    step = _first_int(pipe, "vae_scale_factor_temporal", "vae_temporal_compression_ratio") or 1
    return Sizes(_multiple(pipe, scale), width, height, step)


def _call_parameters(cls: Any) -> Mapping[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(cls.__call__).parameters
    return {name: p for name, p in parameters.items() if p.kind in named and name != "self"}


def _output_field(cls: Any) -> str:
    """The first field of the result that the call constructs; "" for a class whose call leaves that to others."""
    function = inspect.unwrap(cls.__call__)
    names = function.__code__.co_names if inspect.isfunction(function) else ()
    for name in names:
        found = function.__globals__.get(name)
        if inspect.isclass(found) and issubclass(found, BaseOutput) and (fields := inspect.get_annotations(found)):
            return next(iter(fields))
    return oddities.OUTPUT_FIELDS.get(cls.__name__, "")


def _output(field: str, parameters: Mapping[str, Any]) -> Output:
    if field == "images" and "video_length" in parameters:
        return "frames"
    return _MEDIA.get(field, "")


def _image_required(cls: type, call: Mapping[str, inspect.Parameter], image: str) -> bool:
    """None is the default of many an image that has to be given; then it comes before the prompt or with a strength."""
    if cls.__name__ in oddities.OPTIONAL_IMAGE:
        return False
    if cls.__name__ in oddities.REQUIRED_IMAGE or call[image].default is inspect.Parameter.empty:
        return True
    return next(iter(call)) == image or "strength" in call or "mask_image" in call


def _tasks(
    output: Output, call: Mapping[str, inspect.Parameter], image: str, mask: str, required: bool
) -> frozenset[str]:
    match output:
        case "":
            return frozenset()
        case "audios":
            source = "audio" if "audio" in call else "text" if "prompt" in call else "nothing"
            return frozenset({f"{source}-to-audio"})
        case "frames":
            return _video_tasks(call, image, required)
    if mask:
        return frozenset({"inpaint"} if mask == "mask_image" else {"inpaint", "edit", "text-to-image"})
    if not image:
        return frozenset({"text-to-image"} if "prompt" in call else {"nothing-to-image"})
    if "strength" in call:
        return frozenset({"image-to-image"})
    if "prompt" not in call:
        return frozenset({"variation"})
    return frozenset({"edit"} if required else {"edit", "text-to-image"})


def _video_tasks(call: Mapping[str, inspect.Parameter], image: str, image_required: bool) -> frozenset[str]:
    if "video" in call and (call["video"].default is inspect.Parameter.empty or "strength" in call):
        return frozenset({"video-to-video"})
    if image_required:
        return frozenset({"image-to-video"})
    tasks = {"text-to-video"} if "prompt" in call else set()
    if image:
        tasks.add("image-to-video")
    if "video" in call:
        tasks.add("video-to-video")
    return frozenset(tasks)


def _requestable(name: str, parameter: inspect.Parameter) -> bool:
    plain = parameter.default is inspect.Parameter.empty or isinstance(parameter.default, _PLAIN)
    return plain and not _NOT_FOR_REQUESTS.match(name) and not _OBJECTS.search(_annotation(parameter))


def _default(parameter: inspect.Parameter) -> Any:
    return None if parameter.default is inspect.Parameter.empty else parameter.default


def _annotation(parameter: inspect.Parameter) -> str:
    return "" if parameter.annotation is inspect.Parameter.empty else str(parameter.annotation)


def _takes_list(parameter: inspect.Parameter) -> bool:
    annotation = _annotation(parameter)
    return not annotation or bool(re.search(r"\b[Ll]ist\[", annotation))


def _scale(pipe: Any) -> int:
    """Pixels to a latent."""
    return _first_int(pipe, "vae_scale_factor_spatial", "vae_scale_factor", "vae_spatial_compression_ratio") or 1


def _multiple(pipe: Any, scale: int) -> int:
    """Some pipelines count the patches of the denoiser in their image processor, others leave that to the denoiser."""
    processor = getattr(pipe, "image_processor", None) or getattr(pipe, "video_processor", None)
    packed = getattr(getattr(processor, "config", None), "vae_scale_factor", scale)
    patch = getattr(getattr(_denoiser(pipe), "config", None), "patch_size", 1) or 1
    return max(packed, scale * (patch if isinstance(patch, int) else patch[-1]))


def _default_side(pipe: Any, scale: int, name: str) -> int:
    config = getattr(_denoiser(pipe), "config", None)
    latents = _first_int(pipe, "default_sample_size") or getattr(config, "sample_size", None)
    if latents is None:
        latents = getattr(config, f"sample_{name}", None)
    return latents * scale if isinstance(latents, int) else 1024


def _denoiser(pipe: Any) -> Any:
    return getattr(pipe, "transformer", None) or getattr(pipe, "unet", None)


def _first_int(pipe: Any, *names: str) -> int:
    return next((value for name in names if isinstance(value := getattr(pipe, name, None), int) and value), 0)
