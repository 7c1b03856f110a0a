"""Rows of the flag table that users of vllm-omni and of `vllm serve` type, and that this version does not act on."""

from __future__ import annotations

from app.settings.flags import Flag
from app.settings.values import ValueKind


def _refused(name: str, reason: str, kind: ValueKind = "str", aliases: tuple[str, ...] = ()) -> Flag:
    return Flag(
        name=name, kind=kind, group="other", target="input", help="", status="refused", reason=reason, aliases=aliases
    )


REFUSED = (
    _refused("ssl-ciphers", "Granian's TLS offers no weak ciphers to choose from"),
    _refused("enable-ssl-refresh", "Granian reads certificates at the start; restart the server for new ones", "bool"),
    _refused("config", "put flags into OMNI_* variables, and stages into a --deploy-config file"),
    _refused("middleware", "mount create_app() into an application of your own, which can have any", "list"),
    _refused("grpc", "there is no gRPC interface", "bool"),
    _refused("grpc-port", "there is no gRPC interface", "int"),
    _refused("h11-max-incomplete-event-size", "use --max-header-bytes", "int"),
    _refused("h11-max-header-count", "use --max-header-bytes", "int"),
    _refused("enable-offline-docs", "/docs needs no other site in any case", "bool"),
    _refused("enable-flash-late-interaction", "belongs to vLLM's own HTTP server, which does not run here", "bool"),
    _refused("data-parallel-supervisor-port", "one master supervises all replicas", "int"),
    _refused("dp-supervisor-probe-interval-s", "use --omni-heartbeat-timeout", "float"),
    _refused("dp-supervisor-probe-timeout-s", "use --omni-heartbeat-timeout", "float"),
    _refused("dp-supervisor-probe-failure-threshold", "use --omni-heartbeat-timeout", "int"),
)

PEER_FLAGS = REFUSED
