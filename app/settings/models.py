"""Bringing models to this machine before anything loads: hub downloads and the conversion of the demo."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from app.cluster.process import python_command
from app.cluster.rundir import StartupError
from app.demo.picture import demo_picture_model
from app.demo.text import DemoUnavailableError
from app.demo.voice import demo_voice
from app.settings.aligner import ALIGNER, not_an_aligner
from app.settings.detection import is_hub_id, what_is
from app.settings.pipelines import PIPELINES
from app.settings.schema import Settings, StageConfig
from app.settings.stagemodels import fits, stage_hints
from app.settings.stages import BY_MODEL

Progress = Callable[[str], None]
_STDERR_LIMIT = 1 << 16


async def prepare(settings: Settings, progress: Progress) -> Settings:
    """Settings whose stages name directories of this machine. Does not count as a stage's loading time.

    The work is done by a child process, which ends when this coroutine is cancelled.

    Raises:
        StartupError: a model cannot be had; says why and what to do.
    """
    known: dict[tuple[str, ...], str] = {}

    async def obtained(request: tuple[str, ...], name: str) -> str:
        if request not in known:
            once = f"'s language model, which is made once and kept in {cache_directory()}" if name == "demo" else ""
            progress(f"getting the model {name}{once}")
            known[request] = await _obtain(request, progress)
        return known[request]

    stages = []
    external = {stage.stage_id for stage in settings.external_stages}
    for stage in settings.stages:
        located = stage
        if stage.stage_id in external:
            stages.append(stage)
            continue
        if stage.model == "demo":
            located = _demo(stage)
        if request := _request(stage):
            located = _located(stage, await obtained(request, stage.model))
            _check(stage, located.model, settings)
        for name, request in _argument_requests(stage):
            located = _with_argument(located, name, await obtained(request, stage.engine_args[name]))
        stages.append(located)
    return msgspec.structs.replace(settings, stages=stages)


def _located(stage: StageConfig, directory: str) -> StageConfig:
    return msgspec.structs.replace(stage, model=directory, source=stage.model)


def _with_argument(stage: StageConfig, name: str, directory: str) -> StageConfig:
    return msgspec.structs.replace(
        stage,
        engine_args={**stage.engine_args, name: directory},
        argument_sources={**stage.argument_sources, name: stage.engine_args[name]},
    )


def _demo(stage: StageConfig) -> StageConfig:
    """A stage of the demo whose model is a file of a package: nothing to convert."""
    try:
        if stage.kind == "diffusion":
            return _located(stage, str(demo_picture_model()))
        if stage.kind == "speech":
            demo_voice()
    except DemoUnavailableError as error:
        raise StartupError(str(error)) from None
    return stage


def cache_directory() -> Path:
    """Where converted models are kept."""
    base = os.environ.get("OMNI_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "omni-app"
    )
    return Path(base).absolute()


def _request(stage: StageConfig) -> tuple[str, ...]:
    """The arguments for app.settings.obtain; empty if the model needs nothing."""
    if stage.kind == "llm" and stage.model == "demo":
        return ("demo", str(cache_directory()))
    if stage.kind == "stub" or not is_hub_id(stage.model):
        return ()
    arguments = stage.engine_args
    where = (stage.model, str(arguments.get("revision") or ""), str(arguments.get("download_dir") or ""))
    if stage.kind == "diffusion":
        return ("diffusion", *where, str((arguments.get("diffusers_load_kwargs") or {}).get("variant") or ""))
    return ("hub", *where)


def _argument_requests(stage: StageConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The engine arguments that are hub models, each with the arguments for app.settings.obtain."""
    vocoder = stage.engine_args.get("vocoder") if stage.kind == "speech" else None
    if vocoder and is_hub_id(vocoder):
        yield "vocoder", ("hub", vocoder, "", str(stage.engine_args.get("download_dir") or ""))


async def _obtain(request: tuple[str, ...], progress: Progress) -> str:
    """Run the child; its last line is the directory, the lines before are progress."""
    child = await asyncio.create_subprocess_exec(
        *python_command("app.settings.obtain", str(os.getpid()), *request),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    errors = asyncio.create_task(_tail(child.stderr))
    directory = ""
    try:
        async for line in child.stdout:
            if directory:
                progress(directory)
            directory = line.decode(errors="replace").strip()
        if await child.wait() != 0:
            raise StartupError(f"cannot get the model {request[1]}: {_reason(await errors, child.returncode)}")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        errors.cancel()
    return directory


async def _tail(stream: asyncio.StreamReader) -> str:
    kept = b""
    while chunk := await stream.read(_STDERR_LIMIT):
        kept = (kept + chunk)[-_STDERR_LIMIT:]
    return kept.decode(errors="replace")


def _reason(errors: str, code: int | None) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {code}"


def _check(stage: StageConfig, directory: str, settings: Settings) -> None:
    """The files have the last word on which pipeline serves the model, and on the kind of its stage."""
    if stage.model_stage == ALIGNER:
        if (wrong := not_an_aligner(Path(directory))) is not None:
            raise StartupError(f"the model {stage.model} cannot align: {wrong}")
        return
    open_pipeline = PIPELINES[settings.pipeline].open
    if stage.model == "demo" or not (open_pipeline or settings.origins.get("pipeline", BY_MODEL) == BY_MODEL):
        return
    try:
        found = what_is(directory, None, stage_hints(stage.engine_args))
    except ValueError as error:
        raise StartupError(f"the model {stage.model} cannot be served: {error}") from None
    if found is None:
        return
    if open_pipeline:
        if not fits(stage, found):
            raise StartupError(f"the model {stage.model} is {found.what}, which no stage of kind {stage.kind} serves")
        return
    if refusal := found.pipeline.refusal:
        raise StartupError(f"the model {stage.model} cannot be served: it is {found.what}: {refusal}")
    if found.pipeline.name != settings.pipeline:
        raise StartupError(f"the model {stage.model} needs the pipeline {found.pipeline.name}, not {settings.pipeline}")
