"""What a loaded pipeline can be asked for: by which class, with which arguments, in which sizes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from app.engines.diffusion import previews
from app.engines.diffusion.abilities import Abilities, Sizes, abilities, sizes
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.siblings import siblings
from app.engines.diffusion.sound import LENGTHS, START, Sound, sound_of
from app.engines.diffusion.tuning import shift_argument
from app.engines.diffusion.video import Video, video_of
from app.protocol.pictures import PictureFormat
from app.protocol.speechtask import SpeechFormat

SOUND = "text-to-audio"
TEXT = ("text-to-image", "nothing-to-image", "text-to-video")
EDITS = ("edit", "image-to-image")
VARIATIONS = ("variation", "image-to-image")
FILMS = ("text-to-video", "image-to-video")
INPAINT = "inpaint"

_OURS = frozenset(
    {
        "prompt",
        "generator",
        "latents",
        "output_type",
        "return_dict",
        "num_images_per_prompt",
        "num_videos_per_prompt",
        "callback_on_step_end",
        "callback_on_step_end_tensor_inputs",
    }
)
"""Arguments that the engine sets itself, for each row of a batch."""


class Defaults(msgspec.Struct, frozen=True):
    """What can be configured for requests beside the arguments that a pipeline's call takes by itself.

    `width` and `height` in pixels, 0: the pipeline's own.
    """

    seed: int | None = None
    width: int = 0
    height: int = 0
    negative_prompt: str | None = None
    flow_shift: float | None = None
    boundary_ratio: float | None = None


_SEPARATE = frozenset(Defaults.__struct_fields__)


class Mode(msgspec.Struct, frozen=True):
    """One way to run the loaded components: a pipeline class for a task.

    `parameters` are what a request may set, with the values that hold otherwise; `arguments` those of them that the
    server was configured with, and that the pipeline would not know by itself. `video`: of a class that makes videos;
    for a picture it makes one frame.
    """

    task: str
    cls: type
    abilities: Abilities
    signature: frozenset[str]
    parameters: dict[str, Any]
    arguments: dict[str, Any]
    video: Video | None = None


class Offer(msgspec.Struct, frozen=True):
    """Everything that a request is measured by.

    `max_pixels`: of a picture. `shift`: the scheduler's argument for the flow shift, "" if it has none. `boundary`:
    there are two denoisers, and a point where they change. `sound`: of a pipeline that makes sound, and no pictures.
    """

    class_name: str
    modes: dict[str, Mode]
    sizes: Sizes
    max_pixels: int
    defaults: Defaults
    shift: str
    boundary: bool
    previews: bool
    transparency: bool
    max_steps: int
    clip_layers: int
    sound: Sound | None = None

    def kinds(self) -> list[str]:
        """The request kinds that can be answered."""
        known = {
            "image": TEXT,
            "image_edit": (*EDITS, INPAINT),
            "image_variation": VARIATIONS,
            "sound": (SOUND,),
        }
        kinds = [kind for kind, tasks in known.items() if not self.modes.keys().isdisjoint(tasks)]
        return kinds + ["video"] * (self._video is not None)

    def modalities(self) -> list[str]:
        """What it makes, in the words of /v1/models."""
        if self.sound is not None:
            return ["audio"]
        kinds = self.kinds()
        return ["image"] * (kinds != ["video"]) + ["video"] * ("video" in kinds)

    @property
    def _video(self) -> Video | None:
        """Of the first class that makes videos of what a request can hold."""
        return next((mode.video for task in FILMS if (mode := self.modes.get(task)) is not None and mode.video), None)

    def card(self) -> str:
        """What /v1/models tells of it: a JSON object."""
        mode = next(iter(self.modes.values()))
        configured = {name: value for name, value in msgspec.structs.asdict(self.defaults).items() if value}
        card = {
            "class": self.class_name,
            "tasks": sorted(self.modes),
            "parameters": mode.parameters | configured,
            **(self._of_pictures() if self.sound is None else self._of_sound(self.sound)),
        }
        return msgspec.json.encode(card, enc_hook=str).decode()

    def _of_pictures(self) -> dict[str, Any]:
        sizes = {name: getattr(self.sizes, name) for name in ("multiple", "width", "height")}
        video = self._video
        frames = {"video": {"frames": video.frames, "frame_step": video.step, "fps": video.fps}} if video else {}
        return {
            "sizes": sizes | {"max_pixels": self.max_pixels},
            "formats": list(get_args(PictureFormat)),
            "partial_images": self.previews,
            **frames,
        }

    @staticmethod
    def _of_sound(sound: Sound) -> dict[str, Any]:
        return {
            "formats": list(get_args(SpeechFormat)),
            "sample_rate": sound.rate,
            "max_seconds": sound.max_seconds,
        }


def survey(pipe: Any, options: DiffusionOptions) -> Offer:
    """What `pipe` and the siblings on its components offer under the stage's options.

    Raises:
        ValueError: it makes neither pictures nor sound of what a request can hold; or a configured default is no
            argument of it, or a wrong one.
    """
    own = abilities(type(pipe))
    if own.output not in ("images", "frames") and SOUND not in own.tasks:
        made = f"makes {own.output}" if own.output else "makes nothing that is known here"
        raise ValueError(f"{own.class_name} {made}; pipelines are served that make pictures, or sound of a prompt")
    configured = options.diffusers_call_kwargs | options.default_sampling_params
    defaults = _defaults(configured, type(pipe), own)
    classes = dict.fromkeys(sorted(own.tasks), type(pipe)) | {
        task: cls for task, cls in siblings(pipe).items() if task not in own.tasks
    }
    scheduler = getattr(pipe, "scheduler", None)
    offer = Offer(
        class_name=own.class_name,
        modes={task: _mode(pipe, task, cls, configured) for task, cls in classes.items()},
        sizes=_sizes(pipe, defaults),
        max_pixels=options.max_generated_image_size,
        defaults=defaults,
        shift=shift_argument(scheduler) if scheduler is not None else "",
        boundary=getattr(pipe, "transformer_2", None) is not None and "boundary_ratio" in pipe.config,
        previews=previews.possible(pipe),
        transparency=_is_transparent(pipe),
        max_steps=_max_steps(scheduler),
        clip_layers=getattr(getattr(getattr(pipe, "text_encoder", None), "config", None), "num_hidden_layers", 0),
        sound=sound_of(pipe, own.parameters) if SOUND in own.tasks else None,
    )
    if defaults.flow_shift is not None and not offer.shift:
        raise ValueError(f"flow_shift among the sampling defaults: {own.class_name} has none here; remove it")
    if defaults.boundary_ratio is not None and not offer.boundary:
        raise ValueError(f"boundary_ratio among the sampling defaults: {own.class_name} has none; remove it")
    return offer


def _defaults(configured: dict[str, Any], cls: type, own: Abilities) -> Defaults:
    taken = set(inspect.signature(cls.__call__).parameters) - _OURS - {own.image_parameter, own.mask_parameter}
    for name, value in configured.items():
        if name not in taken | _SEPARATE:
            raise ValueError(
                f"{name!r} among the sampling defaults is no argument of {cls.__name__}; "
                f"it takes {listed(own.parameters)}"
            )
        if name in own.parameters and name not in _SEPARATE and (kind := misfit(value, own.parameters[name])):
            raise ValueError(f"{name} among the sampling defaults is {kind}, not {value!r}")
    try:
        return msgspec.convert({name: value for name, value in configured.items() if name in _SEPARATE}, Defaults)
    except msgspec.ValidationError as error:
        raise ValueError(f"the sampling defaults: {error}") from None


def _mode(pipe: Any, task: str, cls: type, configured: dict[str, Any]) -> Mode:
    what = abilities(cls)
    signature = frozenset(inspect.signature(cls.__call__).parameters)
    arguments = {name: value for name, value in configured.items() if name in signature and name not in _SEPARATE}
    parameters = {name: value for name, value in what.parameters.items() if name not in ("width", "height")}
    if _ignores_guidance(pipe, parameters):
        del parameters["guidance_scale"]
    if what.output == "audios":  # fields of every request, whatever a class calls them
        parameters = {name: value for name, value in parameters.items() if name not in (*LENGTHS, START)}
    video = None
    if what.output == "frames":
        step = sizes(pipe).frame_step
        defaults = {name: p.default for name, p in inspect.signature(cls.__call__).parameters.items()}
        video = video_of(cls.__name__, defaults, configured, step, faster=_is_wan_2_2_small(pipe))
    if video is not None:  # fields of a request for a video, whatever a class calls them
        parameters = {name: value for name, value in parameters.items() if name not in (video.count, video.rate)}
        arguments[video.count] = 1
    parameters |= {name: value for name, value in arguments.items() if name in parameters}
    return Mode(task, cls, what, signature, parameters, arguments, video)


def _ignores_guidance(pipe: Any, parameters: dict[str, Any]) -> bool:
    """Pipelines with true guidance feed the other scale to the model, and drop it if the model takes none."""
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    return {"guidance_scale", "true_cfg_scale"} <= parameters.keys() and not getattr(config, "guidance_embeds", True)


def _is_wan_2_2_small(pipe: Any) -> bool:
    """The one with 5 billion parameters: of Wan's only its frames have steps of their own."""
    return bool(getattr(pipe, "config", {}).get("expand_timesteps"))


def _sizes(pipe: Any, defaults: Defaults) -> Sizes:
    own = sizes(pipe)
    return msgspec.structs.replace(own, width=defaults.width or own.width, height=defaults.height or own.height)


def _max_steps(scheduler: Any) -> int:
    """As many as the model was trained for; a schedule that begins later has fewer."""
    config = getattr(scheduler, "config", {})
    return int(config.get("num_train_timesteps", 1000)) - int(config.get("steps_offset", 0))


def _is_transparent(pipe: Any) -> bool:
    config = getattr(getattr(pipe, "vae", None), "config", {})
    return 4 in (config.get("out_channels"), config.get("input_channels"))


def misfit(value: Any, default: Any) -> str:
    """What kind of value an argument with this default takes, if `value` is of another; "" if it is good.

    Where there is no default, it takes numbers, words, truth and lists of them.
    """
    match default:
        case bool():
            good, kind = isinstance(value, bool), "true or false"
        case int():
            good, kind = isinstance(value, int) and not isinstance(value, bool), "an integer"
        case float():
            good, kind = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        case str():
            good, kind = isinstance(value, str), "a string"
        case list() | tuple():
            good, kind = isinstance(value, list) and all(_is_plain(part) for part in value), "a list"
        case _:
            parts = value if isinstance(value, list) else [value]
            good, kind = all(_is_plain(part) for part in parts), "a number, a string, true, false, or a list of them"
    return "" if good else kind


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(sorted(names)) or "none"
