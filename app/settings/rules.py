"""What single values cannot show: settings that need, exclude or contradict each other, files that are not there."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from app.engines.omni.code2wav.options import read_options as vocoder_options
from app.engines.policy.options import read_options as policy_options
from app.media.policy import HostList
from app.settings.access import check_origins
from app.settings.devices import world_size
from app.settings.rules_diffusion import diffusion_problems
from app.settings.rules_nodes import node_problems
from app.settings.rules_omni import talker_problems
from app.settings.rules_options import option_problems
from app.settings.rules_speech import speech_problems
from app.settings.schema import LogConfig, MasterConfig, MediaConfig, ServerConfig, Settings, SpeechConfig, StageConfig

_NEEDED = (
    ("enable_auto_tool_choice", "tool_call_parser"),
    ("enable_log_outputs", "enable_log_requests"),
)
"""Engine arguments of which the first means nothing without the second."""

_EXCLUDED = (("enable_per_request_metrics", "disable_log_stats"),)

_OF_KIND: dict[str, Callable[[StageConfig], Iterator[str]]] = {
    "llm": talker_problems,
    "diffusion": diffusion_problems,
    "speech": speech_problems,
    "generation": partial(option_problems, vocoder_options),
    "policy": partial(option_problems, policy_options),
}


def check(settings: Settings, problems: list[str]) -> None:
    """Add everything that is wrong with the whole to `problems`; the prefix of the root path loses its last slash."""
    problems += _server(settings.server)
    check_origins(settings.server, problems)
    problems += _media(settings.media)
    problems += _speech(settings.speech)
    problems += _reach(settings.master)
    problems += _hosts(settings)
    problems += _ray(settings.master)
    problems += node_problems(settings)
    problems += _log(settings.log)
    for stage in settings.stages:
        where = f"stage {stage.stage_id} ({stage.name})"
        own = _OF_KIND[stage.kind](stage) if stage.kind in _OF_KIND else ()
        problems += (f"{where}: {problem}" for problem in (*_arguments(stage), *own, *_devices(stage)))


def _server(server: ServerConfig) -> Iterator[str]:
    if server.root_path and not server.root_path.startswith("/"):
        yield f"--root-path must begin with /, got {server.root_path!r}"
    server.root_path = server.root_path.rstrip("/")
    if server.uds and not Path(server.uds).absolute().parent.is_dir():
        yield f"--uds: there is no directory {Path(server.uds).absolute().parent}"
    yield from _tls(server)


def _tls(server: ServerConfig) -> Iterator[str]:
    if bool(server.ssl_certfile) != bool(server.ssl_keyfile):
        yield "--ssl-certfile and --ssl-keyfile belong together; one of them is missing"
    elif server.ssl_certfile:
        yield from _loadable(server)
    if server.ssl_cert_reqs and not server.ssl_ca_certs:
        yield "--ssl-cert-reqs asks clients for certificates, so --ssl-ca-certs must say whose are accepted"
    if server.ssl_cert_reqs == 1:
        yield "--ssl-cert-reqs 1 (a certificate if the client has one) is nothing that Granian can do: give 0 or 2"
    if server.ssl_ca_certs and not server.ssl_certfile:
        yield "--ssl-ca-certs needs HTTPS: give --ssl-certfile and --ssl-keyfile"


def _loadable(server: ServerConfig) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile, password="")
    except (OSError, ValueError) as error:
        yield f"--ssl-certfile {server.ssl_certfile}, --ssl-keyfile {server.ssl_keyfile}: cannot be used: {error}"
    if server.ssl_ca_certs:
        try:
            context.load_verify_locations(server.ssl_ca_certs)
        except OSError as error:
            yield f"--ssl-ca-certs {server.ssl_ca_certs}: cannot be used: {error}"


def _media(media: MediaConfig) -> Iterator[str]:
    path = media.allowed_local_media_path
    if path and not Path(path).is_dir():
        yield f"--allowed-local-media-path: there is no directory {path}"
    try:
        HostList(media.allowed_media_domains)
    except ValueError as error:
        yield f"--allowed-media-domains: {error}"


def _speech(speech: SpeechConfig) -> Iterator[str]:
    url = speech.voices_database  # not shown: it may hold a password
    if url and "://" not in url:
        yield "--voices-database is no URL; a file is named as sqlite:////path/to/voices.sqlite3"


def _reach(master: MasterConfig) -> Iterator[str]:
    if not master.port or master.token:
        return
    from app.cluster.transport import is_loopback  # zmq is imported only where a master port was given

    if not is_loopback(master.address):
        yield (
            f"the master at {master.address}:{master.port} can be reached from other machines: give --omni-token "
            "(or OMNI_TOKEN), the same on every host, so that only your replicas can join"
        )


def _ray(master: MasterConfig) -> Iterator[str]:
    if master.worker_backend != "ray":
        if master.ray_address:
            yield "--ray-address means nothing without --worker-backend ray"
    elif not master.port or not master.token:
        yield (
            "--worker-backend ray places replicas on other hosts: give --omni-master-address and --omni-master-port, "
            "where they reach this one, and --omni-token"
        )


def _hosts(settings: Settings) -> Iterator[str]:
    master, ids = settings.master, [stage.stage_id for stage in settings.stages]
    if master.encrypt and not master.token:
        yield "--omni-encrypt makes its keys of the token: give --omni-token"
    if master.stage_id is None:
        if master.local_replicas:
            yield "--omni-dp-size-local is for the stage of --stage-id; otherwise num_replicas of a stage says it"
    elif ids and master.stage_id not in ids:
        origin = settings.origins["master.stage_id"]
        yield f"{origin}: there is no stage {master.stage_id}; this model has {', '.join(map(str, ids))}"
    elif settings.external_stages and not master.port:
        others = ", ".join(f"{stage.stage_id} ({stage.name})" for stage in settings.external_stages)
        yield f"--omni-master-port is missing: where stages {others} are, and this one, meet"


def _log(log: LogConfig) -> Iterator[str]:
    if log.file:
        path = Path(log.file).absolute()
        if not path.parent.is_dir():
            yield f"--log-file: there is no directory {path.parent}"
        elif path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            yield f"--log-file: {path} cannot be written"
    for endpoint in log.silent_endpoints:
        if not endpoint.startswith("/"):
            yield f"--disable-access-log-for-endpoints: a path begins with /, got {endpoint!r}"


def _arguments(stage: StageConfig) -> Iterator[str]:
    given = stage.engine_args
    for name, needed in _NEEDED:
        if given.get(name) and not given.get(needed):
            yield f"{_option(name)} needs {_option(needed)}"
    for name, other in _EXCLUDED:
        if given.get(name) and given.get(other):
            yield f"{_option(name)} and {_option(other)} exclude each other"


def _option(argument: str) -> str:
    return "--" + argument.replace("_", "-")


def _devices(stage: StageConfig) -> Iterator[str]:
    """Named devices are those of one replica, which all replicas share, or those of each replica in turn."""
    if stage.devices in ("", "cpu"):
        return
    count, world = len(stage.devices.split(",")), world_size(stage)
    if count not in (world, world * stage.num_replicas):
        wanted = f"{world}" if stage.num_replicas == 1 else f"{world} or {world * stage.num_replicas}"
        yield (
            f'devices "{stage.devices}" are {count}, but tensor_parallel_size x pipeline_parallel_size x '
            f"data_parallel_size is {world}: name {wanted}"
        )
