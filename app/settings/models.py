"""Bringing models to this machine before anything loads: hub downloads and the conversion of the demo."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from app.cluster.process import python_command
from app.cluster.rundir import StartupError
from app.settings.detection import detect, is_hub_id
from app.settings.inspection import Hints
from app.settings.schema import Settings, StageConfig
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
    stages = []
    for stage in settings.stages:
        request = _request(stage)
        if request and request not in known:
            progress(f"getting the model {stage.model}")
            known[request] = await _obtain(request, progress)
            if settings.origins.get("pipeline", BY_MODEL) == BY_MODEL:
                _check(stage, known[request], settings.pipeline)
        stages.append(_located(stage, known[request]) if request else stage)
    return msgspec.structs.replace(settings, stages=stages)


def _located(stage: StageConfig, directory: str) -> StageConfig:
    return msgspec.structs.replace(stage, model=directory, source=stage.model)


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


def _check(stage: StageConfig, directory: str, pipeline: str) -> None:
    """The files have the last word on which pipeline serves the model."""
    hints = Hints(str(stage.engine_args.get("model_class_name") or ""))
    try:
        found = detect(directory, None, hints=hints).pipeline.name
    except ValueError as error:
        raise StartupError(f"the model {stage.model} cannot be served: {error}") from None
    if stage.model != "demo" and found != pipeline:
        raise StartupError(f"the model {stage.model} needs the pipeline {found}, not {pipeline}")
