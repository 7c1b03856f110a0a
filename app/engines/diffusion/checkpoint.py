"""A pipeline on disk, by its model_index.json: its class and its components. No weight is read."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import Any

import diffusers
import msgspec
import transformers

from app.settings.inspection import read_json

INDEX = "model_index.json"
MODULAR_INDEX = "modular_model_index.json"


class Checkpoint(msgspec.Struct, frozen=True):
    """`components`: library and class by name, without those that the pipeline is saved without. `parameters`: what
    else its index says of the pipeline.

    `class_name` is "" for a class whose code lies beside the index (or is named by its module and name there).
    """

    directory: Path
    class_name: str
    components: dict[str, tuple[str, str]]
    parameters: dict[str, Any] = {}

    def part(self, name: str) -> Path:
        """Where the component lies: in a folder of its name, or beside the index."""
        folder = self.directory / name
        return folder if folder.is_dir() else self.directory

    def component_class(self, name: str) -> Any:
        """The class of a component; None for one that only the pipeline's own code knows."""
        library, class_name = self.components[name]
        module = {"diffusers": diffusers, "transformers": transformers}.get(library)
        return getattr(module or getattr(diffusers.pipelines, library, None), class_name, None)

    def models(self) -> dict[str, str]:
        """The library of each component with weights, "diffusers" or "transformers", by its name."""
        kinds = {"diffusers": diffusers.ModelMixin, "transformers": transformers.PreTrainedModel}
        found = {}
        for name in self.components:
            cls = self.component_class(name)
            for library, kind in kinds.items():
                if inspect.isclass(cls) and issubclass(cls, kind):
                    found[name] = library
        return found


def read_checkpoint(directory: Path) -> Checkpoint:
    """The pipeline in `directory`.

    Raises:
        ValueError: there is none, or its index is broken.
    """
    index = read_json(directory / INDEX)
    if index is None:
        raise ValueError(f"{directory} holds no diffusers pipeline: it has no {INDEX}")
    name = index.get("_class_name")
    components = {
        name: (value[0], value[1])
        for name, value in index.items()
        if isinstance(value, list) and len(value) == 2 and all(isinstance(x, str) for x in value) and name[0] != "_"
    }
    parameters = {name: value for name, value in index.items() if not isinstance(value, list) and name[0] != "_"}
    return Checkpoint(directory, name if isinstance(name, str) else "", components, parameters)


def find_class(name: str) -> Any:
    """The pipeline class `name` of diffusers.

    Raises:
        ValueError: there is none, or a package that it needs is missing; the message names near ones, or the package.
    """
    found = getattr(diffusers, name, None)
    if needed := getattr(found, "_backends", None):
        raise ValueError(f"the pipeline class {name} needs {', '.join(needed)}, and not all of it is installed here")
    if inspect.isclass(found) and issubclass(found, diffusers.DiffusionPipeline):
        return found
    known = [known for known in diffusers._import_structure["pipelines"] if known.endswith("Pipeline")]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"diffusers {diffusers.__version__} has no pipeline class {name!r}{hint}")


def init_parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """What the constructor takes, by name."""
    parameters = inspect.signature(cls.__init__).parameters
    return {name: p for name, p in parameters.items() if name != "self" and p.kind is not p.VAR_KEYWORD}
