"""`omni-app serve`: check everything that can be checked, then be Granian's main process."""

from __future__ import annotations

import math
import os
import resource
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from app.asgi import DEFAULT_MOUNT, granian_target
from app.cluster.process import python_command
from app.cluster.rundir import RunDir
from app.console.report import Server
from app.settings import engines
from app.settings.environment import SETTINGS_FILE
from app.settings.pipelines import PART_OF_A_MODEL
from app.settings.problems import ConfigError
from app.settings.resolve import examine
from app.settings.schema import ServerConfig, Settings, StageConfig
from app.telemetry.logging import send_errors_to

BACKLOG = 4096
OWN_FILES = 512
"""Files of a worker that are not connections of HTTP clients, generously."""
KILL_MARGIN_S = 15
"""What a worker gets on top of --shutdown-timeout before it is killed."""


def run(typed: Mapping[str, Any]) -> int:
    """Serve until stopped; the exit code.

    Raises:
        ConfigError: what was typed cannot work.
    """
    resolution = examine(typed, os.environ, source="flag", ask_hub=True)
    for warning in resolution.warnings:
        click.echo(f"omni-app: warning: {warning}", err=True)
    if missing := list(engines.problems(resolution.settings.local_stages)):
        raise ConfigError(missing)
    server = resolution.settings.server
    try:
        address = numeric_address(server)
    except OSError as error:
        click.echo(f"omni-app: error: --host {server.host}: {error.strerror or error}", err=True)
        return 1
    reason = socket_problem(Path(server.uds)) if server.uds else port_problem(address, server.port)
    if reason:
        click.echo(f"omni-app: error: {reason}", err=True)
        return 1
    send_errors_to(resolution.settings.log.file)
    os.environ[SETTINGS_FILE] = hand_over(typed)
    return _launch(resolution.settings, address)


def numeric_address(server: ServerConfig) -> str:
    """The IP address of --host; Granian takes no names.

    Raises:
        OSError: the name is unknown.
    """
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def port_problem(address: str, port: int) -> str | None:
    """Why the port cannot be had, or None.

    Granian shares its port, so a second server on it would start without a word and get half of the requests.
    """
    for reuse in (False, True):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                probe.bind((address, port))
            except OSError as error:
                problem = f"cannot listen on {address} port {port}: {(error.strerror or str(error)).lower()}"
            else:
                return None
        # Connections of a server that has just ended also refuse the first try, but then they are listed.
        if not _has_connections(port):
            return problem
    return problem


def socket_problem(path: Path) -> str | None:
    """Why the Unix socket cannot be had, or None. A socket that nobody listens on any more is taken away."""
    if not path.exists():
        return None
    if not path.is_socket():
        return f"--uds {path}: there is a file of that name, and it is no socket"
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return None
        except OSError as error:
            return f"--uds {path}: {(error.strerror or str(error)).lower()}"
    return f"--uds {path}: another server listens on it"


def _has_connections(port: int) -> bool:
    suffix = f":{port:04X}"
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists() and any(line.split()[1].endswith(suffix) for line in table.read_text().splitlines()[1:]):
            return True
    return False


def hand_over(typed: Mapping[str, Any]) -> str:
    """Put the typed flags where this process's workers can read them; the path.

    A file without a name in any directory: readable for this user only, and gone with this process however it ends.
    """
    descriptor = os.memfd_create("omni-settings")
    os.write(descriptor, msgspec.json.encode(typed))
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def connection_limit(wanted: int) -> int:
    """The connections that a worker may hold: `wanted`, or what its files allow once their soft limit is raised.

    Idle connections count; a worker that has no room left cannot answer a probe either.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(16, min(wanted, hard - OWN_FILES))


def _launch(settings: Settings, address: str) -> int:
    from granian.constants import Interfaces, Loops, SSLProtocols
    from granian.errors import FatalError
    from granian.http import HTTP1Settings
    from granian.log import LogLevels

    from app.console.main_process import MainProcess

    server = settings.server
    granian = MainProcess(
        "app:create_app",
        address=address,
        port=server.port,
        uds=Path(server.uds) if server.uds else None,
        ssl_cert=Path(server.ssl_certfile) if server.ssl_certfile else None,
        ssl_key=Path(server.ssl_keyfile) if server.ssl_keyfile else None,
        ssl_ca=Path(server.ssl_ca_certs) if server.ssl_ca_certs else None,
        ssl_client_verify=server.ssl_cert_reqs == 2,
        ssl_protocol_min=SSLProtocols.tls12,
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        workers=server.workers,
        backlog=BACKLOG,
        backpressure=connection_limit(server.max_connections),
        http1_settings=HTTP1Settings(header_read_timeout=round(server.keep_alive_timeout_s * 1000)),
        respawn_failed_workers=True,
        workers_kill_timeout=math.ceil(settings.master.shutdown_timeout) + KILL_MARGIN_S,
        log_level=LogLevels.warning,
    )
    granian.on_startup(lambda: _start_reporter(settings))
    try:
        granian.serve(target_loader=granian_target, wrap_loader=False)
    except FatalError:
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _made(stage: StageConfig) -> list[str]:
    """What clients can ask the stage for, in the words of the announcement."""
    if stage.kind == PART_OF_A_MODEL:
        return ["spoken"]
    if not stage.entry:
        return []
    return ["speech"] if stage.kind == "speech" else stage.outputs


def _start_reporter(settings: Settings) -> None:
    """A process of its own: threads in this one would be torn by the forks of the workers."""
    facts = Server(
        run_dir=str(RunDir.locate(DEFAULT_MOUNT).path),
        parent=os.getpid(),
        host=settings.server.host,
        port=settings.server.port,
        root_path=settings.server.root_path,
        model=settings.served_model_names[0],
        guarded=bool(settings.server.api_keys),
        outputs=tuple(dict.fromkeys(output for stage in settings.stages for output in _made(stage))),
        uds=settings.server.uds,
        certificate=settings.server.ssl_certfile,
        client_certificates=settings.server.ssl_cert_reqs == 2,
    )
    encoded = msgspec.json.encode(facts).decode()
    subprocess.Popen(python_command("app.console.report", encoded), stdin=subprocess.DEVNULL)
