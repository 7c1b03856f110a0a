"""From what was typed, the environment and the deploy files to Settings: one function, with the origin of each value.

Strongest first: the pipeline's topology (a conflict is refused), --stage-overrides, a typed flag, an OMNI_* variable,
then the deploy file: its section for this platform, the stage, the whole pipeline; then its base_config chain in the
same order, the shipped file of the pipeline, and the default.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.media.policy import HostList
from app.settings.access import check_origins, take_keys
from app.settings.flags import flags
from app.settings.problems import ConfigError
from app.settings.schema import MasterConfig, MediaConfig, ServerConfig, Settings
from app.settings.sources import Given, Source, gather
from app.settings.stages import resolve_stages

__all__ = ["ConfigError", "Resolution", "examine", "resolve"]

logger = logging.getLogger(__name__)

Section = TypeVar("Section", ServerConfig, MasterConfig, MediaConfig)


class Resolution(msgspec.Struct, frozen=True):
    """Settings, and what the user should know although it is no error."""

    settings: Settings
    warnings: list[str]


def resolve(
    typed: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ, *, source: Source = "argument"
) -> Settings:
    """Settings from typed values (flag names with underscores) and OMNI_* variables; warnings are logged.

    Raises:
        ConfigError: with every problem that was found.
    """
    resolution = examine(typed, environ, source=source)
    for warning in resolution.warnings:
        logger.warning("%s", warning)
    return resolution.settings


def examine(
    typed: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ, *, source: Source = "argument"
) -> Resolution:
    """As resolve(), with the warnings returned.

    Raises:
        ConfigError: with every problem that was found.
    """
    problems: list[str] = []
    warnings: list[str] = []
    given = gather(typed or {}, environ, source, problems, warnings)
    model = str(given["model"].value).strip() if "model" in given else ""
    if not model:
        problems.append("no model: set OMNI_MODEL (OMNI_MODEL=demo needs nothing else), or use `omni-app serve MODEL`")
        raise ConfigError(problems)
    settings = _assemble(model, given, problems, warnings)
    if problems:
        raise ConfigError(problems)
    return Resolution(settings, warnings)


def _assemble(model: str, given: Mapping[str, Given], problems: list[str], warnings: list[str]) -> Settings:
    origins = {"model": given["model"].origin}
    names = given.get("served_model_name")
    origins["served_model_names"] = names.origin if names else "default"
    server = _section(ServerConfig, "server", given, origins)
    master = _section(MasterConfig, "master", given, origins)
    media = _section(MediaConfig, "media", given, origins)
    _check_root_path(server, problems)
    _check_media(media, problems)
    take_keys(server, given, origins, problems)
    check_origins(server, problems)
    _check_reach(master, problems)
    resolved = resolve_stages(model, given, problems, warnings)
    return Settings(
        model=model,
        served_model_names=list(dict.fromkeys(names.value)) if names else [model],
        pipeline=resolved.pipeline,
        stages=resolved.stages,
        server=server,
        master=master,
        media=media,
        origins=origins | resolved.origins,
        created=int(time.time()),
    )


def _section(kind: type[Section], name: str, given: Mapping[str, Given], origins: dict[str, str]) -> Section:
    """One section of Settings from the flags whose target is in it."""
    values: dict[str, Any] = {}
    for flag in flags():
        if flag.target.startswith(f"{name}."):
            found = given.get(flag.key)
            values[flag.field] = found.value if found else flag.default
            origins[flag.target] = found.origin if found else "default"
    return msgspec.convert(values, kind)


def _check_root_path(server: ServerConfig, problems: list[str]) -> None:
    if server.root_path and not server.root_path.startswith("/"):
        problems.append(f"--root-path must begin with /, got {server.root_path!r}")
    server.root_path = server.root_path.rstrip("/")


def _check_media(media: MediaConfig, problems: list[str]) -> None:
    path = media.allowed_local_media_path
    if path and not Path(path).is_dir():
        problems.append(f"--allowed-local-media-path: there is no directory {path}")
    try:
        HostList(media.allowed_media_domains)
    except ValueError as error:
        problems.append(f"--allowed-media-domains: {error}")


def _check_reach(master: MasterConfig, problems: list[str]) -> None:
    if not master.port or master.token:
        return
    from app.cluster.transport import is_loopback  # zmq is imported only where a master port was given

    if not is_loopback(master.address):
        problems.append(
            f"the master at {master.address}:{master.port} can be reached from other machines: give --omni-token "
            "(or OMNI_TOKEN), the same on every host, so that only your replicas can join"
        )
