"""Rows of the flag table for every other argument of vLLM, under vLLM's own names, and the ones that are refused."""

from __future__ import annotations

from app.settings.flags import Flag
from app.settings.table_engine import ENGINE_FLAGS
from app.settings.vllm_arguments import VLLM_ARGUMENTS

_HOSTS = "the engines of one replica run on one host; for more hosts run `omni-app headless` on each of them"
_RANKS = "one replica is one engine here; for more engines give the stage num_replicas in the deploy file"
_SERVER = "belongs to vLLM's own HTTP server, which does not run here"

REFUSED = {
    "data-parallel-rank": _RANKS,
    "data-parallel-start-rank": _RANKS,
    "data-parallel-size-local": _RANKS,
    "data-parallel-hybrid-lb": f"{_RANKS}, and --omni-lb-policy",
    "data-parallel-external-lb": f"{_RANKS}, and --omni-lb-policy",
    "data-parallel-multi-port-external-lb": f"{_RANKS}, and --omni-lb-policy",
    "data-parallel-address": _HOSTS,
    "data-parallel-rpc-port": _HOSTS,
    "data-parallel-backend": _HOSTS,
    "enable-elastic-ep": _RANKS,
    "elastic-ep-max-dp-size": _RANKS,
    "enable-scale-out": _RANKS,
    "sse-keep-alive-interval": f"{_SERVER}; use --sse-keep-alive",
    "enable-server-load-tracking": f"{_SERVER}; /metrics tells the load",
    "enable-tokenizer-info-endpoint": _SERVER,
    "log-error-stack": f"{_SERVER}; the replica's log has the stack of every unexpected error",
    "tokens-only": _SERVER,
    "tool-server": "tools that a server runs itself belong to /v1/responses, which this version does not have",
    "enable-force-include-usage": "usage in a stream is the client's choice: stream_options.include_usage",
    "log-config-file": "out of date in vLLM itself; use --logging-config",
}
"""Arguments of vLLM that mean nothing here, or something else, with what to use instead."""

_OWN = {flag.name for flag in ENGINE_FLAGS} | {
    "model",
    "served-model-name",
    "revision",
    "download-dir",
    "allowed-local-media-path",
    "allowed-media-domains",
    "shutdown-timeout",
    "log-level",
}

_MEETING = frozenset({"master-addr", "master-port"})
"""Where the hosts of one replica meet; OMNI_MASTER_PORT is the port of the server's master."""

_SHARED = frozenset({"quantization-config"})
"""Arguments that a diffusion stage takes as well."""


def _rows() -> list[Flag]:
    rows = []
    for name, kind, aliases in VLLM_ARGUMENTS:
        if name not in _OWN:
            rows.append(
                Flag(
                    name=name,
                    kind=kind,
                    group="vllm",
                    target=f"engine.{name.replace('-', '_')}",
                    kinds=("llm", "diffusion") if name in _SHARED else ("llm",),
                    aliases=aliases,
                    status="refused" if name in REFUSED else "works",
                    reason=REFUSED.get(name, ""),
                    secret=name == "hf-token",
                    prefix="VLLM_" if name in _MEETING else "",
                    help="",
                )
            )
    return rows


VLLM_FLAGS = tuple(_rows())
