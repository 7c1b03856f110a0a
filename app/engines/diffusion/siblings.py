"""Pipelines of other tasks on the modules of a loaded one, and a light pipeline object for every request.

Nothing here moves, copies or casts a weight: `DiffusionPipeline.from_pipe` does (to float32, in place).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import diffusers
from diffusers.pipelines import auto_pipeline

from app.engines.diffusion.abilities import abilities
from app.engines.diffusion.options import TaskType
from app.engines.diffusion.parts import modules

_MAPPINGS = (
    auto_pipeline.AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
    auto_pipeline.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    auto_pipeline.AUTO_INPAINT_PIPELINES_MAPPING,
    auto_pipeline.AUTO_TEXT2VIDEO_PIPELINES_MAPPING,
    auto_pipeline.AUTO_IMAGE2VIDEO_PIPELINES_MAPPING,
    auto_pipeline.AUTO_VIDEO2VIDEO_PIPELINES_MAPPING,
)
_UNCONNECTED = {
    "Flux2KleinPipeline": ("Flux2KleinInpaintPipeline",),
    "FluxKontextPipeline": ("FluxKontextInpaintPipeline",),
    "ChromaPipeline": ("ChromaImg2ImgPipeline", "ChromaInpaintPipeline"),
    "SanaSprintPipeline": ("SanaSprintImg2ImgPipeline",),
    "WanPipeline": ("WanImageToVideoPipeline",),
}
"""Siblings that the mappings of diffusers do not know."""

_BY_TIMESTEPS = {"WanImageToVideoPipeline": True, "WanVideoToVideoPipeline": False}
"""Siblings of WanPipeline, by whether the checkpoint has to be one that was trained to begin with a picture too (Wan2.2
TI2V): its `expand_timesteps` tells. The other knows no such steps."""

_TASKS: dict[TaskType, tuple[str, ...]] = {
    "t2i": ("text-to-image",),
    "i2i": ("image-to-image", "edit"),
    "inpaint": ("inpaint",),
    "t2v": ("text-to-video",),
    "i2v": ("image-to-video",),
    "v2v": ("video-to-video",),
}
"""Which tasks the values of --task-type mean."""


def siblings(pipe: Any) -> dict[str, type]:
    """By task (as in abilities.Abilities.tasks), the class that does it with the modules of `pipe`; its own first."""
    found = dict.fromkeys(sorted(abilities(type(pipe)).tasks), type(pipe))
    for cls in _connected(type(pipe)):
        if _fits(cls, pipe):
            for task in sorted(abilities(cls).tasks):
                found.setdefault(task, cls)
    return found


def class_for(task_type: TaskType, cls: type, index: Mapping[str, Any]) -> type:
    """The class among `cls` and its siblings that does the task, `cls` itself before others.

    `index` is what the checkpoint says of its pipeline.

    Raises:
        ValueError: none does; the message says what they do.
    """
    related = [x for x in (cls, *_connected(cls)) if _was_trained_for(x, cls, index)]
    for candidate in related:
        if not abilities(candidate).tasks.isdisjoint(_TASKS[task_type]):
            return candidate
    known = frozenset[str]().union(*(abilities(x).tasks for x in related))
    names = [name for name, tasks in _TASKS.items() if not known.isdisjoint(tasks)]
    others = f"it can be {', '.join(names)}" if names else "leave it out"
    raise ValueError(f"--task-type {task_type}: there is no pipeline for that beside {cls.__name__}; {others}")


def shell(pipe: Any, cls: type | None = None) -> Any:
    """A pipeline object of its own on the modules of `pipe`, with schedulers of its own.

    What a call keeps on its pipeline (guidance, step, interruption) and in its scheduler stays in the shell, so that
    several calls can run on the same weights. Tokenizers and autoencoders are shared and are not safe in two threads.
    `cls` is a class that `siblings` named.
    """
    made = copy.copy(pipe) if cls is None or cls is type(pipe) else _rebuilt(pipe, cls)
    for name, part in vars(made).copy().items():
        if isinstance(part, diffusers.SchedulerMixin):
            # Past DiffusionPipeline.__setattr__, which would rewrite the configuration for a change of class. Nobody
            # calls `pipe` itself, so its scheduler is as new, and copying that takes a tenth of building another one.
            made.__dict__[name] = copy.deepcopy(part)
        elif isinstance(part, diffusers.DiffusionPipeline):
            made.__dict__[name] = shell(part)
    return made


def _connected(cls: type) -> list[type]:
    """The classes of the mappings for the same model, and those beside them."""
    name = next((name for mapping in _MAPPINGS for name, known in mapping.items() if known is cls), None)
    connected = [mapping[name] for mapping in _MAPPINGS if name in mapping]
    return connected + [getattr(diffusers, other) for other in _UNCONNECTED.get(cls.__name__, ())]


def _fits(cls: type, pipe: Any) -> bool:
    """Whether everything that the class must be given is there, and it takes every model that is there."""
    given = pipe.components.keys() | pipe.parameters.keys()
    takes = _init(cls)
    needs = {name for name, p in takes.items() if p.default is inspect.Parameter.empty}
    complete = needs <= given and modules(pipe).keys() <= takes.keys()
    return complete and _was_trained_for(cls, type(pipe), pipe.config)


def _was_trained_for(cls: type, own: type, index: Mapping[str, Any]) -> bool:
    expands = bool(index.get("expand_timesteps"))
    return cls is own or _BY_TIMESTEPS.get(cls.__name__, expands) == expands


def _rebuilt(pipe: Any, cls: type) -> Any:
    given = pipe.components | pipe.parameters
    made = cls(**{name: given[name] for name in _init(cls) if name in given})
    known = vars(made)
    # Hooks of offloading, the progress bar's configuration and the like, which no constructor knows.
    known.update({name: value for name, value in vars(pipe).items() if name not in known})
    return made


def _init(cls: type) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(cls).parameters.items() if p.kind is not p.VAR_KEYWORD}
