"""A modular pipeline on disk in the layout of a stock one, whose execution everything here is made for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.engines.diffusion.checkpoint import INDEX, MODULAR_INDEX, find_class
from app.settings.inspection import read_json

_RENAMED = {
    "Wan22ModularPipeline": "WanPipeline",
    "WanImage2VideoModularPipeline": "WanImageToVideoPipeline",
    "Wan22Image2VideoModularPipeline": "WanImageToVideoPipeline",
}


def lay_out(directory: Path, class_name: str, target: Path) -> Path:
    """Write into `target` an index of a stock pipeline, and links to the components in `directory`; returns `target`.

    `class_name` is the stock class, "" for the one that the name of the modular class stands for.

    Raises:
        ValueError: no stock class has that name, or a component lies outside `directory`.
    """
    modular = read_json(directory / MODULAR_INDEX)
    if modular is None:
        raise ValueError(f"{directory} holds no pipeline: it has neither a {INDEX} nor a {MODULAR_INDEX}")
    index: dict[str, Any] = {"_class_name": class_name or _stock_name(directory, str(modular.get("_class_name")))}
    find_class(index["_class_name"])
    for name, value in modular.items():
        if name.startswith("_"):
            continue
        if isinstance(value, list) and len(value) == 3 and isinstance(value[2], dict):
            (target / name).symlink_to(_folder(directory, name, value[2]))
            kind = value[2].get("type_hint") or value[:2]
            index[name] = [part or hint for part, hint in zip(value[:2], kind, strict=True)]
        else:
            index[name] = value
    (target / INDEX).write_text(json.dumps(index))
    return target


def _stock_name(directory: Path, modular: str) -> str:
    name = _RENAMED.get(modular, modular.replace("ModularPipeline", "Pipeline"))
    try:
        find_class(name)
    except ValueError as error:
        raise ValueError(
            f"{directory} is a modular pipeline ({modular}) that stands for no stock one: {error}; "
            "name the stock class with --model-class-name"
        ) from None
    return name


def _folder(directory: Path, name: str, specification: dict[str, Any]) -> Path:
    folder = directory / (specification.get("subfolder") or name)
    if not folder.is_dir():
        source = specification.get("pretrained_model_name_or_path")
        raise ValueError(f"{directory}: the component {name} lies elsewhere ({source}); put it in {folder}")
    return folder.resolve()
