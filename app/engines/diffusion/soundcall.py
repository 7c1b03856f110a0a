"""From a sound task to the arguments of one pipeline call, checked. What the pipeline cannot take is refused."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from app.engines.diffusion.call import Call, batch_key, call_arguments, check_steps
from app.engines.diffusion.inputs import Inputs
from app.engines.diffusion.offer import SOUND, Mode, Offer
from app.engines.diffusion.sound import START, Sound
from app.engines.refusal import refuse
from app.media.soundfile import RATES
from app.protocol.soundtask import SoundTask

_FIELDS = ("num_inference_steps", "guidance_scale")
"""Fields of a task that are arguments of a pipeline's call by the same name."""


def plan(task: SoundTask, offer: Offer) -> Call:
    """The call that answers the task.

    Raises:
        EngineError: 400; `param` is the field of /v1/audio/generate, and the message says what is possible.
    """
    mode = offer.modes.get(SOUND)
    if mode is None or offer.sound is None:
        refuse(f"{offer.class_name} makes no sound of a prompt", None)
    _check_rate(task)
    given = {name: value for name in _FIELDS if (value := getattr(task, name)) is not None}
    arguments = mode.arguments | call_arguments(given, task.extra, mode, offer)
    check_steps(arguments, offer)
    arguments |= _times(task, mode, offer.sound)
    seed = task.seed if task.seed is not None else offer.defaults.seed
    call = Call(
        mode=mode,
        prompt=task.prompt,
        negative_prompt=_negative(task, mode, offer, arguments),
        seed=secrets.randbits(32) if seed is None else seed,
        n=1,
        arguments=arguments,
        inputs=Inputs(),
        width=0,
        height=0,
        steps=arguments.get("num_inference_steps") or mode.parameters.get("num_inference_steps") or 0,
        shift=None,
        boundary_ratio=None,
        blend=(),
        previews=0,
        key=None,
    )
    return msgspec.structs.replace(call, key=batch_key(call))


def _check_rate(task: SoundTask) -> None:
    rates = RATES[task.format]
    if task.sample_rate and rates and task.sample_rate not in rates:
        listed = ", ".join(map(str, rates))
        refuse(f"{task.format} cannot carry {task.sample_rate} Hz; it carries {listed}", "sample_rate")


def _times(task: SoundTask, mode: Mode, sound: Sound) -> dict[str, Any]:
    """The arguments for length and start; nothing where the pipeline's own hold."""
    name = mode.cls.__name__
    if task.start is not None and not sound.starts:
        refuse(f"{name} makes sounds that begin at 0", "audio_start")
    if task.seconds is not None and not sound.length:
        refuse(f"{name} makes sounds of one length", "audio_length")
    start, longest = task.start or 0.0, sound.max_seconds
    if start >= longest:
        refuse(f"{name} makes sounds that begin before {longest:g} s", "audio_start")
    times = {START: start} if task.start is not None else {}
    if task.seconds is None:
        return times
    if not task.seconds * sound.rate >= 1 or start + task.seconds > longest:
        after = f" after {start:g} s" if start else ""
        refuse(f"{name} makes sounds of up to {longest - start:g} s{after}, not {task.seconds:g} s", "audio_length")
    return times | {sound.length: start + task.seconds}


def _negative(task: SoundTask, mode: Mode, offer: Offer, arguments: dict[str, Any]) -> str | None:
    """The negative prompt; the request's own is refused where it has no effect."""
    asked = task.negative_prompt
    if "negative_prompt" not in mode.signature:
        if asked is not None:
            refuse(f"{mode.cls.__name__} takes no negative prompt", "negative_prompt")
        return None
    scale = arguments.get("guidance_scale", mode.parameters.get("guidance_scale"))
    if asked is not None and scale is not None and scale <= 1:
        refuse(f"negative_prompt has no effect at guidance_scale {scale:g}: give one above 1", "negative_prompt")
    return asked if asked is not None else offer.defaults.negative_prompt
