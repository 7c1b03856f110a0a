"""The forced aligner: one more stage, behind those of a pipeline that reads texts out, which times their words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.settings import platforms
from app.settings.detection import is_hub_id
from app.settings.flags import by_engine_argument
from app.settings.inspection import read_json
from app.settings.problems import near
from app.settings.schema import StageConfig
from app.settings.sources import Given
from app.settings.stagefields import StageValues, check_stage
from app.settings.yamlfile import read_mapping

ALIGNER = "aligner"
"""The name of the stage, and its model_stage."""
MODEL = "Qwen/Qwen3-ForcedAligner-0.6B"
ARCHITECTURE = "Qwen3ASRForcedAlignerForTokenClassification"
"""vLLM's class of it."""

_SET_HERE: dict[str, Any] = {
    "runner": "pooling",
    "hf_overrides": {"architectures": [ARCHITECTURE]},
    "pooler_config": {"tok_pooling_type": "STEP"},
}
"""What makes vLLM serve the model as an aligner: its config.json names the class of the recogniser."""
_SIZES: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 4096, "gpu_memory_utilization": 0.3}
_SIZES_CPU: dict[str, Any] = {"dtype": "float32", "max_model_len": 4096}
_FIELDS = ("model", "devices", "env", "num_replicas", "max_queue")
"""Fields of a stage that a configuration file may have beside engine arguments."""


class AlignerStage(msgspec.Struct, frozen=True):
    """The stage, and where its values came from, by path ("stages[2].engine_args.dtype")."""

    config: StageConfig
    origins: dict[str, str]


def aligner_stage(
    stages: list[StageConfig], given: Mapping[str, Given], problems: list[str], warnings: list[str]
) -> AlignerStage | None:
    """The stage that --forced-aligner and its configuration ask for, to follow `stages`; None where nobody asks.

    What is wrong is added to `problems`.
    """
    flag, device = given.get("forced_aligner"), given.get("forced_aligner_device")
    file = _read(given.get("forced_aligner_config"), problems)
    if flag is None and file is None:
        if device is not None:
            problems.append(f"{device.origin}: there is no forced aligner; name one with --forced-aligner {MODEL}")
        return None
    asked = flag or given["forced_aligner_config"]
    speaking = next((stage for stage in stages if stage.kind == "speech"), None)
    if speaking is None:
        told = problems if asked.typed else warnings
        told.append(f"{asked.origin}: no stage of this pipeline reads texts out, so there are no words to be timed")
        return None
    values, origins = _defaults(speaking)
    for layer in _layers(file, given, problems):
        _lay(values, origins, *layer)
    if not values.get("model"):
        problems.append(f"{asked.origin}: no model is named: add model: {MODEL}, or --forced-aligner {MODEL}")
        return None
    if (wrong := _wrong(values["model"])) is not None:
        problems.append(f"{origins['model']}: {wrong}")
    stage_id = max(stage.stage_id for stage in stages) + 1
    config = msgspec.convert({"stage_id": stage_id, **values}, StageConfig)
    return AlignerStage(config, {f"stages[{stage_id}].{path}": origin for path, origin in origins.items()})


def _wrong(model: str) -> str | None:
    """What can be said against the model as it was named: a hub id is looked at when its files are here."""
    directory = Path(model).expanduser()
    if not is_hub_id(model) and not directory.is_dir():
        return f"there is no model at {directory}: the directory does not exist"
    return not_an_aligner(directory)


def not_an_aligner(directory: Path) -> str | None:
    """Why the model in a directory cannot align; None if it can, and for what is no directory (yet).

    Raises:
        ValueError: its config.json cannot be read.
    """
    if not directory.is_dir():
        return None
    config = read_json(directory / "config.json") or {}
    if isinstance((config.get("thinker_config") or {}).get("classify_num"), int):
        return None
    if "Qwen3ASRForTokenClassification" in (config.get("architectures") or ()):
        return f"{directory} is a forced aligner in the layout of transformers, which vLLM does not read: use {MODEL}"
    return f"{directory} is no forced aligner: its config.json has no thinker_config.classify_num, as {MODEL} has"


def _defaults(beside: StageConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """What holds unless somebody says otherwise; it shares a device of the stage that makes the sound."""
    devices = beside.devices.partition(",")[0]
    on_cpu = devices == "cpu" or platforms.current() == "cpu"
    values = {
        "name": ALIGNER,
        "kind": "llm",
        "model_stage": ALIGNER,
        "entry": False,
        "outputs": [],
        "devices": devices,
        "engine_args": _SET_HERE | (_SIZES_CPU if on_cpu else _SIZES),
        "per_platform": [name for name in _SIZES if _SIZES[name] != _SIZES_CPU.get(name)],
    }
    return values, {"devices": f"devices of stage {beside.stage_id} ({beside.name})"}


def _read(chosen: Given | None, problems: list[str]) -> StageValues | None:
    """The file of --forced-aligner-config: what a deploy file may say about a stage, as far as it is not fixed."""
    if chosen is None:
        return None
    try:
        content, _ = read_mapping(Path(chosen.value).expanduser())
    except ValueError as error:
        problems.append(f"{chosen.origin}: {error}")
        return None
    llm = {name for name, flag in by_engine_argument().items() if "llm" in flag.kinds}
    known = (*_FIELDS, "engine_args", *(llm - _SET_HERE.keys()), "runner")
    for key in sorted(content.keys() - set(known)):
        what = "is set by the server" if key in _SET_HERE else f"unknown key{near(key, known)}"
        problems.append(f"{chosen.value}: {key}: {what}")
    checked = check_stage({key: content[key] for key in content if key in known}, str(chosen.value), problems)
    arguments = checked.values.get("engine_args", {})
    if arguments.get("runner") not in (None, "pooling"):
        problems.append(f"{chosen.value}: runner: a forced aligner runs as pooling, not {arguments['runner']!r}")
    fixed = sorted({"hf_overrides", "pooler_config"} & arguments.keys())
    problems += [f"{chosen.value}: engine_args.{key}: is set by the server" for key in fixed]
    problems += checked.refused
    return checked


def _layers(
    file: StageValues | None, given: Mapping[str, Given], problems: list[str]
) -> list[tuple[Mapping[str, Any], str]]:
    """Weakest first: values, and their origin."""
    layers: list[tuple[Mapping[str, Any], str]] = []
    flag, device = given.get("forced_aligner"), given.get("forced_aligner_device")
    if file is not None:
        layers.append((file.values, str(given["forced_aligner_config"].value)))
    if flag is not None:
        layers.append(({"model": flag.value}, flag.origin))
    if device is not None:
        layers.append((check_stage({"devices": device.value}, device.origin, problems).values, device.origin))
    return layers


def _lay(values: dict[str, Any], origins: dict[str, str], layer: Mapping[str, Any], origin: str) -> None:
    for key, value in layer.items():
        if key == "engine_args":
            given = {name: argument for name, argument in value.items() if argument is not None}
            values[key] = values[key] | given
            origins |= {f"{key}.{name}": origin for name in given}
        elif value is not None:
            values[key], origins[key] = value, origin
