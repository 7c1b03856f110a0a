"""From what was typed, the environment and the deploy files to Settings: one function, with the origin of each value.

Strongest first: the pipeline's topology (a conflict is refused), --stage-overrides, a typed flag, an OMNI_* variable,
then strategy.yaml, then the deploy file: its section for this platform, the stage, the whole pipeline; then its
base_config chain in the same order, the shipped file of the pipeline, and the default.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.settings import rules
from app.settings.access import take_keys, take_token
from app.settings.environment import SETTINGS_FILE
from app.settings.flags import flags
from app.settings.hub import Hub, LookUp
from app.settings.problems import ConfigError
from app.settings.rules_memory import crowded
from app.settings.schema import LogConfig, MasterConfig, MediaConfig, ServerConfig, Settings, SpeechConfig, StageConfig
from app.settings.sources import Given, Source, gather
from app.settings.stages import NO_MODEL, resolve_stages

__all__ = ["ConfigError", "Resolution", "examine", "resolve"]

logger = logging.getLogger(__name__)

_LISTENING = (
    "host",
    "port",
    "workers",
    "keep_alive_timeout_s",
    "max_connections",
    "uds",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_ca_certs",
    "ssl_cert_reqs",
)

Section = TypeVar("Section", ServerConfig, MasterConfig, MediaConfig, SpeechConfig, LogConfig)


class Resolution(msgspec.Struct, frozen=True):
    """Settings, and what the user should know although it is no error."""

    settings: Settings
    warnings: list[str]


def resolve(
    typed: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ, *, source: Source = "argument"
) -> Settings:
    """Settings from typed values (flag names with underscores) and OMNI_* variables; warnings are logged.

    A hub id that is not in the cache costs one small request: which pipeline serves it cannot be known otherwise.

    Raises:
        ConfigError: with every problem that was found.
    """
    resolution = examine(typed, environ, source=source, ask_hub=True)
    for warning in (*resolution.warnings, *_idle(resolution.settings, environ)):
        logger.warning("%s", warning)
    return resolution.settings


def _idle(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """What only `omni-app serve` acts on, where another server runs the application."""
    if SETTINGS_FILE in environ:
        return
    for field in _LISTENING:
        origin = settings.origins.get(f"server.{field}", "default")
        if origin != "default":
            yield f"{origin}: only `omni-app serve` acts on it; tell the server that runs this application"


def examine(
    typed: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    source: Source = "argument",
    ask_hub: bool = False,
) -> Resolution:
    """As resolve(), with the warnings returned. `ask_hub`: find out what hub ids are, with one request each.

    Raises:
        ConfigError: with every problem that was found.
    """
    problems: list[str] = []
    warnings: list[str] = []
    given = gather(typed or {}, environ, source, problems, warnings)
    model = str(given["model"].value).strip() if "model" in given else ""
    if not model and "deploy_config" not in given:
        raise ConfigError([*problems, NO_MODEL])
    look_up = Hub(environ, warnings).look_up if ask_hub else None
    settings = _assemble(model, given, problems, warnings, look_up)
    if problems:
        raise ConfigError(problems)
    return Resolution(settings, warnings)


def _assemble(
    model: str, given: Mapping[str, Given], problems: list[str], warnings: list[str], look_up: LookUp | None
) -> Settings:
    origins = {"model": given["model" if model else "deploy_config"].origin}
    names = given.get("served_model_name")
    origins["served_model_names"] = names.origin if names else "default"
    server = _section(ServerConfig, "server", given, origins)
    master = _section(MasterConfig, "master", given, origins)
    media = _section(MediaConfig, "media", given, origins)
    speech = _section(SpeechConfig, "speech", given, origins)
    log = _section(LogConfig, "log", given, origins)
    take_keys(server, given, origins, problems)
    take_token(master, given, origins, problems)
    resolved = resolve_stages(model, given, problems, warnings, look_up)
    origins |= resolved.origins
    _place(master, resolved.stages, origins)
    name = model or Path(given["deploy_config"].value).stem
    settings = Settings(
        model=name,
        served_model_names=list(dict.fromkeys(names.value)) if names else [name],
        pipeline=resolved.pipeline,
        stages=resolved.stages,
        server=server,
        master=master,
        media=media,
        speech=speech,
        log=log,
        origins=origins,
        created=int(time.time()),
    )
    rules.check(settings, problems)
    warnings += crowded(settings.local_stages)
    return settings


def _place(master: MasterConfig, stages: list[StageConfig], origins: dict[str, str]) -> None:
    """How many replicas of the only local stage there are is said by a flag of its own."""
    for stage in stages:
        if stage.stage_id == master.stage_id and master.local_replicas:
            stage.num_replicas = master.local_replicas
            origins[f"stages[{stage.stage_id}].num_replicas"] = origins["master.local_replicas"]


def _section(kind: type[Section], name: str, given: Mapping[str, Given], origins: dict[str, str]) -> Section:
    """One section of Settings from the flags whose target is in it."""
    values: dict[str, Any] = {}
    for flag in flags():
        if flag.target.startswith(f"{name}."):
            found = given.get(flag.key)
            values[flag.field] = found.value if found else flag.default
            origins[flag.target] = found.origin if found else "default"
    return msgspec.convert(values, kind)
