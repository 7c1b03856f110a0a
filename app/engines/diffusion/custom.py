"""--diffusion-load-format custom_pipeline: a pipeline class that diffusers does not have, from the user's own code.

--custom-pipeline-args says where the code is: `pipeline_class` is "package.module.Class", importable here;
`custom_pipeline` is a Python file, or a directory with pipeline.py, and needs --trust-remote-code. With neither, the
code is the model's own pipeline.py. Further keys are arguments of the constructor, or attributes of the pipeline.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
from diffusers.utils.dynamic_modules_utils import get_class_from_dynamic_module

from app.engines.diffusion.checkpoint import init_parameters

FLAG = "--custom-pipeline-args"
_CODE = "pipeline.py"
_WHERE = ("pipeline_class", "custom_pipeline")


def custom_class(arguments: Mapping[str, Any], model: Path, trusted: bool) -> Any:
    """The class that the arguments name.

    Raises:
        ValueError: there is no such code, or it is not trusted.
    """
    name, code = (arguments.get(key) for key in _WHERE)
    if name is not None and code is not None:
        raise ValueError(f"{FLAG}: pipeline_class and custom_pipeline both say where the code is; name one")
    if name is not None:
        return _import(str(name))
    file = _file(code, model)
    if not trusted:
        raise ValueError(f"{file} would run in this server: read it, then start with --trust-remote-code")
    return get_class_from_dynamic_module(str(file.parent.absolute()), file.name, trust_remote_code=True)


def constructor_values(arguments: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    """The arguments that the class's constructor takes."""
    takes = init_parameters(cls)
    return {name: value for name, value in arguments.items() if name in takes and name not in _WHERE}


def set_attributes(pipe: Any, arguments: Mapping[str, Any]) -> None:
    """Set those of the arguments that the constructor did not take.

    Raises:
        ValueError: the pipeline has no such attribute.
    """
    taken = constructor_values(arguments, type(pipe)).keys() | set(_WHERE)
    for name, value in arguments.items():
        if name in taken:
            continue
        if name.startswith("_") or not hasattr(pipe, name) or callable(getattr(pipe, name)):
            raise ValueError(f"{FLAG}: {type(pipe).__name__} has neither an argument nor an attribute {name!r}")
        setattr(pipe, name, value)


def _import(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ValueError(f"{FLAG}: pipeline_class must be package.module.Class; got {name!r}")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{FLAG}: pipeline_class {name} cannot be imported: {error}") from error
    if not (inspect.isclass(cls) and issubclass(cls, diffusers.DiffusionPipeline)):
        raise ValueError(f"{FLAG}: {name} is no subclass of diffusers.DiffusionPipeline")
    return cls


def _file(given: Any, model: Path) -> Path:
    path = model if given is None else Path(str(given)).expanduser()
    for file in (path, path / _CODE):
        if file.is_file() and file.suffix == ".py":
            return file
    if given is None:
        raise ValueError(f'{model} brings no {_CODE}; name the code: {FLAG} \'{{"custom_pipeline": "DIRECTORY"}}\'')
    raise ValueError(f"{FLAG}: custom_pipeline must be a Python file, or a directory with {_CODE}; got {given}")
