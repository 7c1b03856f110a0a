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
from app.engines.diffusion.tuning import shift_argument
from app.protocol.pictures import PictureFormat

TEXT = ("text-to-image", "nothing-to-image", "text-to-video")
EDITS = ("edit", "image-to-image")
VARIATIONS = ("variation", "image-to-image")
INPAINT = "inpaint"

SEPARATE = frozenset({"seed", "width", "height", "negative_prompt", "flow_shift", "boundary_ratio"})
"""Defaults that can be configured beside the arguments of the pipeline's call."""
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


class Mode(msgspec.Struct, frozen=True):
    """One way to run the loaded components: a pipeline class for a task.

    `parameters` are what a request may set, with the values that hold otherwise; `arguments` those of them that the
    server was configured with, and that the pipeline would not know by itself.
    """

    task: str
    cls: type
    abilities: Abilities
    signature: frozenset[str]
    parameters: dict[str, Any]
    arguments: dict[str, Any]


class Offer(msgspec.Struct, frozen=True):
    """Everything that a request is measured by.

    `defaults` are those of SEPARATE that were configured. `max_pixels`: of a picture. `shift`: the scheduler's argument
    for the flow shift, "" if it has none.
    """

    class_name: str
    modes: dict[str, Mode]
    sizes: Sizes
    max_pixels: int
    defaults: dict[str, Any]
    shift: str
    boundary: bool
    previews: bool
    transparency: bool
    max_steps: int

    def kinds(self) -> list[str]:
        """The request kinds that can be answered."""
        known = {"image": TEXT, "image_edit": (*EDITS, INPAINT), "image_variation": VARIATIONS}
        return [kind for kind, tasks in known.items() if not self.modes.keys().isdisjoint(tasks)]

    def card(self) -> str:
        """What /v1/models tells of it: a JSON object."""
        mode = next(iter(self.modes.values()))
        sizes = {name: getattr(self.sizes, name) for name in ("multiple", "width", "height")}
        card = {
            "class": self.class_name,
            "tasks": sorted(self.modes),
            "parameters": mode.parameters | self.defaults,
            "sizes": sizes | {"max_pixels": self.max_pixels},
            "formats": list(get_args(PictureFormat)),
            "partial_images": self.previews,
        }
        return msgspec.json.encode(card, enc_hook=str).decode()


def survey(pipe: Any, options: DiffusionOptions) -> Offer:
    """What `pipe` and the siblings on its components offer under the stage's options.

    Raises:
        ValueError: it makes no pictures, or a configured default is no argument of it.
    """
    own = abilities(type(pipe))
    if own.output not in ("images", "frames"):
        raise ValueError(f"{own.class_name} makes {own.output}; this engine serves pipelines that make pictures")
    configured = options.diffusers_call_kwargs | options.default_sampling_params
    _check_defaults(configured, type(pipe), own)
    classes = dict.fromkeys(sorted(own.tasks), type(pipe)) | {
        task: cls for task, cls in siblings(pipe).items() if task not in own.tasks
    }
    scheduler = getattr(pipe, "scheduler", None)
    return Offer(
        class_name=own.class_name,
        modes={task: _mode(pipe, task, cls, configured) for task, cls in classes.items()},
        sizes=_sizes(pipe, configured),
        max_pixels=options.max_generated_image_size,
        defaults={name: value for name, value in configured.items() if name in SEPARATE},
        shift=shift_argument(scheduler) if scheduler is not None else "",
        boundary=getattr(pipe, "transformer_2", None) is not None and "boundary_ratio" in pipe.config,
        previews=previews.possible(pipe),
        transparency=_is_transparent(pipe),
        max_steps=_max_steps(scheduler),
    )


def _check_defaults(configured: dict[str, Any], cls: type, own: Abilities) -> None:
    taken = set(inspect.signature(cls.__call__).parameters) - _OURS - {own.image_parameter, own.mask_parameter}
    known = taken | SEPARATE
    for name in configured:
        if name not in known:
            raise ValueError(
                f"{name!r} among the sampling defaults is no argument of {cls.__name__}; "
                f"it takes {listed(own.parameters)}"
            )


def _mode(pipe: Any, task: str, cls: type, configured: dict[str, Any]) -> Mode:
    what = abilities(cls)
    signature = frozenset(inspect.signature(cls.__call__).parameters)
    arguments = {name: value for name, value in configured.items() if name in signature and name not in SEPARATE}
    parameters = {name: value for name, value in what.parameters.items() if name not in ("width", "height")}
    if _ignores_guidance(pipe, parameters):
        del parameters["guidance_scale"]
    if what.output == "frames" and "num_frames" in signature:
        parameters.pop("num_frames", None)
        arguments["num_frames"] = 1
    parameters |= {name: value for name, value in arguments.items() if name in parameters}
    return Mode(task, cls, what, signature, parameters, arguments)


def _ignores_guidance(pipe: Any, parameters: dict[str, Any]) -> bool:
    """Pipelines with true guidance feed the other scale to the model, and drop it if the model takes none."""
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    return {"guidance_scale", "true_cfg_scale"} <= parameters.keys() and not getattr(config, "guidance_embeds", True)


def _sizes(pipe: Any, configured: dict[str, Any]) -> Sizes:
    own = sizes(pipe)
    width, height = configured.get("width", own.width), configured.get("height", own.height)
    return msgspec.structs.replace(own, width=width, height=height)


def _max_steps(scheduler: Any) -> int:
    """As many as the model was trained for; a schedule that begins later has fewer."""
    config = getattr(scheduler, "config", {})
    return int(config.get("num_train_timesteps", 1000)) - int(config.get("steps_offset", 0))


def _is_transparent(pipe: Any) -> bool:
    config = getattr(getattr(pipe, "vae", None), "config", {})
    return 4 in (config.get("out_channels"), config.get("input_channels"))


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(sorted(names)) or "none"
