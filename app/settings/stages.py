"""The stages of a pipeline with their settings: which pipeline, from which files, then one stage after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.settings.aligner import aligner_stage
from app.settings.builder import Builder, Sources
from app.settings.deploy import SHIPPED, Document, find, read_chain, read_legacy
from app.settings.detection import detect
from app.settings.flags import Flag, by_engine_argument, by_key
from app.settings.hub import LookUp
from app.settings.inspection import Hints
from app.settings.pipelines import CUSTOM
from app.settings.schema import StageConfig
from app.settings.sources import Given
from app.settings.stagefields import StageValues, check_stage
from app.settings.stagemodels import StageModels
from app.settings.strategy import Strategy, check_names, read_strategy

T = TypeVar("T")

BY_MODEL = "the model"
"""The origin of a pipeline that nobody named."""
NO_MODEL = "no model: set OMNI_MODEL (OMNI_MODEL=demo needs nothing else), or use `omni-app serve MODEL`"
_BY_STAGE = ("default_sampling_params", "stage_overrides")
"""Flags that are objects by stage id, the weaker one first."""


class ResolvedStages(msgspec.Struct, frozen=True):
    """The stages in order of their ids; `origins` by path."""

    pipeline: str
    stages: list[StageConfig]
    origins: dict[str, str]


def resolve_stages(
    model: str,
    given: Mapping[str, Given],
    problems: list[str],
    warnings: list[str],
    look_up: LookUp | None = None,
) -> ResolvedStages:
    """Find the pipeline of `model` and the settings of its stages; adds what is wrong to `problems`."""
    documents = _explicit_documents(given, problems, warnings)
    strategy = _strategy(given, problems)
    by_stage = {f"--{by_key()[key].name}": _by_stage(given, key, problems) for key in _BY_STAGE}
    named = next((document for document in documents if document.pipeline), None)
    if not model and (named is None or named.pipeline != CUSTOM):
        problems.append(NO_MODEL + (f"; only a deploy file of `pipeline: {CUSTOM}` names models" if documents else ""))
        return ResolvedStages("", [], {})
    try:
        found = detect(model, named.pipeline if named else None, look_up, _hints(given, by_stage, documents))
    except ValueError as error:
        problems.append(str(error))
        return ResolvedStages("", [], {})
    if found.note:
        warnings.append(f"{model}: {found.note}")
    pipeline = found.pipeline
    shipped = SHIPPED / f"{pipeline.name}.yaml"
    explicit = {document.name for document in documents} - {file.name for file in SHIPPED.glob("*.yaml")}
    if pipeline.stages and shipped.name not in {document.name for document in documents}:
        documents += _shipped(shipped, problems, warnings)
    problems += (problem for document in documents for problem in document.refused)
    models = StageModels(look_up, problems, None if pipeline.open else found)
    builder = Builder(
        Sources(
            model=model,
            pipeline=pipeline,
            class_name=models.class_name,
            documents=documents,
            explicit=explicit,
            strategy=strategy,
            given=given,
            by_stage=by_stage,
        ),
        problems,
        warnings,
    )
    stages = builder.stages()
    models.check(stages)
    check_names(strategy, [stage.name for stage in stages], problems)
    _check_owned(stages, given, problems, warnings)
    problems += _unowned(stages, [document for document in documents if document.name in explicit])
    if model and pipeline.name == CUSTOM and not any(stage.model == model for stage in stages):
        told = problems if given["model"].typed else warnings
        told.append(f"{given['model'].origin}: no stage takes {model}: each names a model of its own")
    aligner = aligner_stage(stages, given, problems, warnings)
    if aligner is not None:
        stages.append(aligner.config)
        builder.origins.update(aligner.origins)
    origins = builder.origins | {"pipeline": f"{named.name}:{named.lines['pipeline']}" if named else BY_MODEL}
    return ResolvedStages(pipeline.name, stages, origins)


def _hints(given: Mapping[str, Given], by_stage: dict[str, dict[int, StageValues]], documents: list[Document]) -> Hints:
    """What is said about the model by anybody, the strongest first; which stage it is for is not known yet."""
    entries = [entry for stages in reversed(by_stage.values()) for entry in stages.values()]
    flags = {key: found.value for key, found in given.items() if by_key()[key].target.startswith("engine.")}
    arguments = [*(entry.values.get("engine_args", {}) for entry in entries), flags]
    arguments += [x.values.get("engine_args", {}) for document in documents for x in document.stages.values()]

    def first(key: str, kind: type[T]) -> T | None:
        return next((x[key] for x in arguments if isinstance(x.get(key), kind)), None)

    config = (first("diffusers_load_kwargs", dict) or {}).get("config")
    return Hints(
        class_name=first("model_class_name", str) or "",
        config=config if isinstance(config, str) else "",
        revision=first("revision", str) or "",
        cache=first("download_dir", str) or "",
    )


def _explicit_documents(given: Mapping[str, Given], problems: list[str], warnings: list[str]) -> list[Document]:
    chosen, legacy = given.get("deploy_config"), given.get("stage_configs_path")
    if chosen is not None and legacy is not None:
        problems.append(f"{chosen.origin} and {legacy.origin} exclude each other: both describe the stages")
    if legacy is not None:
        return read_legacy(Path(legacy.value).expanduser(), problems, warnings)
    if chosen is None:
        return []
    try:
        return read_chain(find(chosen.value), problems)
    except ValueError as error:
        problems.append(f"{chosen.origin}: {error}")
        return []


def _shipped(path: Path, problems: list[str], warnings: list[str]) -> list[Document]:
    """The pipeline's own file; a pipeline runs without, on the engines' defaults."""
    if path.is_file():
        return read_chain(path, problems)
    warnings.append(f"the file {path} of this pipeline is missing; the engines' own defaults are used")
    return []


def _strategy(given: Mapping[str, Given], problems: list[str]) -> Strategy:
    chosen = given.get("strategy_config")
    return read_strategy(chosen.value, problems) if chosen else Strategy()


def _by_stage(given: Mapping[str, Given], key: str, problems: list[str]) -> dict[int, StageValues]:
    """The value of a flag that is an object by stage id, as settings of those stages."""
    chosen = given.get(key)
    if chosen is None:
        return {}
    if not isinstance(chosen.value, dict):
        problems.append(f'{chosen.origin}: expected an object by stage id, such as {{"0": {{...}}}}')
        return {}
    stages = {}
    for stage_id, values in chosen.value.items():
        where = f"{chosen.origin}: {stage_id}"
        if not (stage_id.isascii() and stage_id.isdigit()):
            problems.append(f"{where}: a stage id is a whole number")
        elif not isinstance(values, dict):
            problems.append(f"{where}: expected an object of settings, got {values!r}")
        elif key == "stage_overrides":
            stages[int(stage_id)] = check_stage(values, where, problems)
            problems += stages[int(stage_id)].refused
        else:
            stages[int(stage_id)] = StageValues(values={key: values})
    return stages


def _check_owned(
    stages: list[StageConfig], given: Mapping[str, Given], problems: list[str], warnings: list[str]
) -> None:
    """A typed flag that no stage takes is an error; a variable may be meant for another server on this host."""
    kinds = ", ".join(sorted({stage.kind for stage in stages}))
    for key, found in given.items():
        if not _is_owned(by_key()[key], found.value, stages):
            told = problems if found.typed else warnings
            told.append(f"{found.origin}: no stage of this pipeline takes it (its stages are: {kinds})")


def _is_owned(flag: Flag, value: Any, stages: list[StageConfig]) -> bool:
    """Whether a stage takes the flag. --no-async-chunk is true of a pipeline without edges."""
    if flag.key == "async_chunk":
        return not value or any(stage.sources for stage in stages)
    return not flag.kinds or any(stage.kind in flag.kinds for stage in stages)


def _unowned(stages: list[StageConfig], documents: list[Document]) -> Iterator[str]:
    """What a user's file says for all stages although none takes it."""
    kinds = {stage.kind for stage in stages}
    for document in documents:
        if document.async_chunk and not any(stage.sources for stage in stages):
            where = f"{document.name}:{document.lines['async_chunk']}: async_chunk"
            yield f"{where}: no stage of this pipeline feeds another"
        for key in document.common:
            if kinds.isdisjoint(by_engine_argument()[key].kinds):
                where = f"{document.name}:{document.lines[key]}: {key}"
                yield f"{where}: no stage of this pipeline takes it (its stages are: {', '.join(sorted(kinds))})"
