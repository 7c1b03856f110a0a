"""`omni-app headless`: one stage on this machine for a server that runs elsewhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from app.cluster.headless import run as run_replica
from app.cluster.rundir import StartupError
from app.console.progress import Progress
from app.settings import engines
from app.settings.devices import is_further_node
from app.settings.flags import flags
from app.settings.models import prepare
from app.settings.problems import ConfigError
from app.settings.resolve import examine
from app.telemetry.logging import configure_logging, send_errors_to


def run(typed: Mapping[str, Any]) -> int:
    """Get the model, then run its replica until stopped; the exit code.

    Raises:
        ConfigError: what was typed cannot work.
    """
    resolution = examine(typed, os.environ, source="flag", ask_hub=True)
    for warning in resolution.warnings:
        click.echo(f"omni-app: warning: {warning}", err=True)
    _check_commands(typed)
    settings = resolution.settings
    stage_id = settings.master.stage_id
    if stage_id is None:
        ids = ", ".join(str(stage.stage_id) for stage in settings.stages)
        raise ConfigError([f"--stage-id is missing: which stage to run; this model has {ids}"])
    if not settings.master.port and not any(map(is_further_node, settings.local_stages)):
        raise ConfigError(["--omni-master-port is missing: the port that the server was given with the same flag"])
    if missing := list(engines.problems(settings.local_stages)):
        raise ConfigError(missing)
    send_errors_to(settings.log.file)
    configure_logging(settings.log)
    try:
        wanted = msgspec.structs.replace(settings, stages=settings.local_stages)
        settings = asyncio.run(prepare(wanted, Progress().step))
        return run_replica(settings, stage_id)
    except StartupError as error:
        click.echo(f"omni-app: error: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        return 130


def _check_commands(typed: Mapping[str, Any]) -> None:
    """`serve --headless` parses the flags of `serve`, and a replica has no HTTP server.

    Raises:
        ConfigError: HTTP workers are asked for.
    """
    others = [flag for flag in flags() if flag.key in typed and "headless" not in flag.commands]
    for flag in others:
        if flag.key != "workers":
            click.echo(f"omni-app: warning: --{flag.name} has no effect on a headless replica", err=True)
    if any(flag.key == "workers" for flag in others):
        raise ConfigError(["--workers (--api-server-count) and --headless exclude each other: a replica has no HTTP"])
