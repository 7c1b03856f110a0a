"""From a picture task to the arguments of one pipeline call, checked. What the pipeline cannot take is refused."""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from typing import Any, NoReturn

import msgspec
from PIL import Image

from app.engines.diffusion.inputs import Inputs
from app.engines.diffusion.loraweights import Blend
from app.engines.diffusion.offer import EDITS, INPAINT, TEXT, VARIATIONS, Mode, Offer, listed, misfit
from app.engines.refusal import refuse
from app.protocol.pictures import PictureTask

_LONGEST_PROMPT = 4096
"""Tokens that a request may have its prompt filled up to; published pipelines take up to 1024."""
_FIELDS = ("num_inference_steps", "guidance_scale", "true_cfg_scale", "guidance_scale_2", "strength", "layers")
"""Fields of a task that are arguments of a pipeline's call by the same name."""


class Call(msgspec.Struct, frozen=True, eq=False):
    """One checked request: `n` rows that share everything but their seeds, which are seed, seed + 1, ...

    `arguments` are those of the pipeline's call without prompts, pictures and generators. Calls of equal `key` can be
    computed together; None: only rows of this one. `width` and `height` in pixels, 0 where only the pipeline knows.
    Of a video `fps`, and whether its frames are wanted `in_pieces`, as they are decoded.
    """

    mode: Mode
    prompt: str
    negative_prompt: str | None
    seed: int
    n: int
    arguments: dict[str, Any]
    inputs: Inputs
    width: int
    height: int
    steps: int
    shift: float | None
    boundary_ratio: float | None
    blend: Blend
    previews: int
    key: Hashable
    fps: float = 0.0
    in_pieces: bool = False


def choose(task: PictureTask, kind: str, offer: Offer) -> Mode:
    """How the task is to be run, by what it carries.

    Raises:
        EngineError: 400, the pipeline draws nothing, takes no pictures, needs one, or takes fewer.
    """
    modes = offer.modes
    if offer.sound is not None:
        refuse(f"{offer.class_name} makes sound and no pictures", None)
    if task.mask is not None and INPAINT not in modes:
        refuse(f"{offer.class_name} takes no mask; it can do {listed(modes)}", task.mask.param)
    if task.mask is not None and not task.images:
        refuse("a mask needs the image that it belongs to", "image")
    if not task.images:
        found = next((modes[name] for name in TEXT if name in modes), None)
        if found is None or kind != "image":
            refuse(f"{offer.class_name} needs an image here", "image")
        return found
    wanted = (INPAINT,) if task.mask is not None else VARIATIONS if kind == "image_variation" else EDITS
    found = next((modes[name] for name in wanted if name in modes), None)
    if found is None:
        refuse(f"{offer.class_name} takes no images; it can do {listed(modes)}", task.images[0].param)
    if len(task.images) > 1 and not found.abilities.many_images:
        refuse(f"{found.cls.__name__} takes one image, not {len(task.images)}", task.images[1].param)
    return found


def plan(task: PictureTask, mode: Mode, inputs: Inputs, offer: Offer, blend: Blend = ()) -> Call:
    """The call that answers the task, with the LoRA adapters of `blend`.

    Raises:
        EngineError: 400; `param` is the field, and the message says what is possible.
    """
    arguments = mode.arguments | _arguments(task, mode, offer)
    negative = _negative(task, mode, offer, arguments)
    _check_prompt(task, mode)
    check_steps(arguments, offer)
    _check_clip_skip(arguments, offer)
    steps = arguments.get("num_inference_steps") or mode.parameters.get("num_inference_steps") or 0
    if inputs.images:
        _check_strength(arguments, mode, steps)
    if task.previews and not offer.previews:
        refuse(f"{offer.class_name} shows nothing before it is finished", "partial_images")
    if task.transparent and not offer.transparency:
        refuse(f"{offer.class_name} draws no transparent background", "background")
    width, height = _size(task, mode, inputs, offer)
    if width and {"width", "height"} <= mode.signature:
        arguments |= {"width": width, "height": height}
        if "max_area" in mode.signature:  # it would choose another size of that area
            arguments.setdefault("max_area", width * height)
    elif width:
        inputs = _resized(inputs, width, height)
    seed = task.seed if task.seed is not None else offer.defaults.seed
    call = Call(
        mode=mode,
        prompt=task.prompt,
        negative_prompt=negative,
        seed=secrets.randbits(32) if seed is None else seed,
        n=task.n,
        arguments=arguments,
        inputs=inputs,
        width=width or offer.sizes.width,
        height=height or offer.sizes.height,
        steps=steps,
        shift=_shift(task, mode, offer),
        boundary_ratio=_boundary(task, mode, offer),
        blend=blend,
        previews=task.previews,
        key=None,
    )
    return msgspec.structs.replace(call, key=batch_key(call))


def batch_key(call: Call) -> Hashable:
    """What must be equal for two calls to be one; None for a call that has to stay alone."""
    if call.inputs.images or not call.mode.abilities.batches_prompts:
        return None
    shared = (call.arguments, call.shift, call.boundary_ratio, call.negative_prompt is None)
    return call.mode.cls.__name__, msgspec.json.encode(shared, order="deterministic")


# ---------------------------------------------------------------------------------------------------- arguments


def _arguments(task: PictureTask, mode: Mode, offer: Offer) -> dict[str, Any]:
    given = {name: value for name in _FIELDS if (value := getattr(task, name)) is not None}
    extra = {name: value for name, value in task.extra.items() if name not in ("flow_shift", "boundary_ratio")}
    given = call_arguments(given, extra, mode, offer)
    if not 0 <= (strength := given.get("strength", 0)) <= 1:
        refuse(f"strength is between 0 (the input as it is) and 1 (all new), not {strength}", "strength")
    return given


def call_arguments(given: dict[str, Any], extra: dict[str, Any], mode: Mode, offer: Offer) -> dict[str, Any]:
    """Fields of a task that are arguments of the pipeline's call, with those among its extra_params.

    Raises:
        EngineError: 400, the call has no such argument, or it is of another type.
    """
    given = dict(given)
    for name in given:
        if name not in mode.parameters:
            _unknown(name, name, mode, offer)
    for name, value in extra.items():
        param = f"extra_params.{name}"
        if name not in mode.parameters:
            _unknown(name, param, mode, offer)
        if name in given:
            refuse(f"{name} is given twice", param)
        if kind := misfit(value, mode.parameters[name]):
            refuse(f"{name} is {kind}, not {str(value)[:80]!r}", param)
        if name == "max_sequence_length":
            _check_length(value, mode.parameters[name], param)
        given[name] = value
    return given


def _check_length(tokens: int, default: int | None, param: str) -> None:
    """Text encoders make as many rows as they are told, and take the memory for them."""
    most = max(_LONGEST_PROMPT, default or 0)
    if not 1 <= tokens <= most:
        refuse(f"max_sequence_length is between 1 and {most}, not {tokens}", param)


def _check_strength(arguments: dict[str, Any], mode: Mode, steps: int) -> None:
    """Edits begin so late that the strength's share of the steps is left; pipelines fail where that is none."""
    strength = arguments.get("strength", mode.parameters.get("strength"))
    if isinstance(strength, float | int) and steps > 0 and int(steps * strength) < 1:
        field = "strength" if "strength" in arguments else "num_inference_steps"
        refuse(f"of {steps} steps a strength of {strength:g} leaves none; raise one of them", field)


def _unknown(name: str, param: str, mode: Mode, offer: Offer) -> NoReturn:
    takes = [*mode.parameters, *(["flow_shift"] if offer.shift else [])]
    refuse(f"{mode.cls.__name__} takes no {name}; it takes {listed(takes)}", param)


def _shift(task: PictureTask, mode: Mode, offer: Offer) -> float | None:
    """The shift of the noise schedule; None: as it was loaded."""
    param = "flow_shift" if task.flow_shift is not None else "extra_params.flow_shift"
    value = task.flow_shift if task.flow_shift is not None else task.extra.get("flow_shift")
    if value is None:
        return offer.defaults.flow_shift
    if not offer.shift:
        refuse(f"the noise schedule of {mode.cls.__name__} has no flow_shift to choose here", param)
    if misfit(value, 1.0) or value <= 0:
        refuse(f"flow_shift is a number above 0, not {value!r}", param)
    return float(value)


def _boundary(task: PictureTask, mode: Mode, offer: Offer) -> float | None:
    """Where the second denoiser takes over; None: as it was loaded."""
    value, param = task.extra.get("boundary_ratio"), "extra_params.boundary_ratio"
    if value is None:
        return offer.defaults.boundary_ratio
    if not offer.boundary:
        refuse(f"{mode.cls.__name__} has no boundary_ratio here", param)
    if misfit(value, 1.0) or not 0 <= value <= 1:
        refuse(f"boundary_ratio is between 0 and 1, not {value!r}", param)
    return float(value)


def _check_prompt(task: PictureTask, mode: Mode) -> None:
    if task.prompt and "prompt" not in mode.signature:
        refuse(f"{mode.cls.__name__} takes no prompt", "prompt")


def check_steps(arguments: dict[str, Any], offer: Offer) -> None:
    """
    Raises:
        EngineError: 400, fewer steps than one, or more than the model was trained for.
    """
    steps = arguments.get("num_inference_steps", 1)
    if not 1 <= steps <= offer.max_steps:
        refuse(f"num_inference_steps is between 1 and {offer.max_steps}, not {steps}", "num_inference_steps")


def _check_clip_skip(arguments: dict[str, Any], offer: Offer) -> None:
    skipped = arguments.get("clip_skip") or 0
    if offer.clip_layers and not 0 <= skipped < offer.clip_layers:
        message = (
            f"clip_skip is between 0 and {offer.clip_layers - 1}, as the text encoder has {offer.clip_layers} layers"
        )
        refuse(f"{message}; got {skipped}", "extra_params.clip_skip")


def _negative(task: PictureTask, mode: Mode, offer: Offer, arguments: dict[str, Any]) -> str | None:
    """The negative prompt, if it has an effect; the request's own is refused where it has none."""
    asked = task.negative_prompt is not None
    negative = task.negative_prompt if asked else offer.defaults.negative_prompt
    if "negative_prompt" not in mode.signature:
        if asked:
            refuse(f"{mode.cls.__name__} takes no negative prompt", "negative_prompt")
        return None
    scale = arguments.get("true_cfg_scale", mode.parameters.get("true_cfg_scale"))
    if scale is None:
        return negative
    if asked and scale <= 1:
        refuse(f"negative_prompt has no effect at true_cfg_scale {scale:g}: give one above 1", "negative_prompt")
    if negative is None and scale > 1 and task.true_cfg_scale is not None:
        message = 'true_cfg_scale has no effect without negative_prompt (a blank one, " ", will do)'
        refuse(message, "true_cfg_scale")
    return negative


# ---------------------------------------------------------------------------------------------------- size


def _size(task: PictureTask, mode: Mode, inputs: Inputs, offer: Offer) -> tuple[int, int]:
    """Width and height to ask for; (0, 0): the pipeline's own.

    Pipelines round what does not fit without a word, so it is refused here.
    """
    width, height = task.width, task.height
    if not width and not height:
        if inputs.images:
            return fitting(inputs.images[0].size, offer.max_pixels, offer.sizes.multiple)
        width, height = offer.defaults.width, offer.defaults.height
        if not width and not height:
            return 0, 0
    width, height = width or offer.sizes.width, height or offer.sizes.height
    step = offer.sizes.multiple
    if width % step or height % step:
        lower = f"{max(width // step, 1) * step}x{max(height // step, 1) * step}"
        upper = f"{-(-width // step) * step}x{-(-height // step) * step}"
        near = lower if lower == upper else f"{lower} and {upper}"
        message = f"{width}x{height} is no size that {mode.cls.__name__} draws: sides are multiples of {step}"
        refuse(f"{message}; the nearest are {near}", "size")
    if width * height > offer.max_pixels:
        message = f"{width}x{height} has more than {offer.max_pixels} pixels"
        refuse(f"{message}, the most that this server draws (--max-generated-image-size)", "size")
    return width, height


def fitting(size: tuple[int, int], most_pixels: int, step: int) -> tuple[int, int]:
    """The size of an input picture, no larger than the limit, its sides rounded down to multiples of `step`."""
    width, height = size
    scale = min(1.0, (most_pixels / (width * height)) ** 0.5)
    return max(int(width * scale) // step, 1) * step, max(int(height * scale) // step, 1) * step


def _resized(inputs: Inputs, width: int, height: int) -> Inputs:
    """For classes whose output is as large as their input."""
    images = [image.resize((width, height), Image.Resampling.LANCZOS) for image in inputs.images]
    mask = inputs.mask.resize((width, height), Image.Resampling.NEAREST) if inputs.mask is not None else None
    return Inputs(images, mask)
