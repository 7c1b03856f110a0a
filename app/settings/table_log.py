"""Rows of the flag table for logs."""

from __future__ import annotations

from typing import get_args

from app.settings.flags import Flag
from app.settings.schema import LogConfig, LogLevel

_DEFAULT = LogConfig()

LOG_FLAGS = (
    Flag(
        name="log-level",
        kind="str",
        group="log",
        target="log.level",
        default=_DEFAULT.level,
        choices=get_args(LogLevel),
        aliases=("--uvicorn-log-level",),
        help="How much the server and its replicas say of themselves.",
    ),
    Flag(
        name="engine-log-level",
        kind="str",
        group="log",
        target="log.engine_level",
        default=_DEFAULT.engine_level,
        choices=get_args(LogLevel),
        help="How much vLLM says. Default: what VLLM_LOGGING_LEVEL says, or warning.",
    ),
    Flag(
        name="log-format",
        kind="str",
        group="log",
        target="log.format",
        default=_DEFAULT.format,
        choices=("text", "json"),
        help="Lines for people, or one JSON object a line.",
    ),
    Flag(
        name="log-file",
        kind="str",
        group="log",
        target="log.file",
        default=_DEFAULT.file,
        metavar="FILE",
        help="File that gets, at its end, all that the processes of the server would write to standard error.",
    ),
    Flag(
        name="disable-access-log",
        kind="bool",
        group="log",
        target="log.disable_access_log",
        default=_DEFAULT.disable_access_log,
        aliases=("--disable-uvicorn-access-log",),
        commands=("serve",),
        help="No line for each request.",
    ),
    Flag(
        name="disable-access-log-for-endpoints",
        kind="list",
        group="log",
        target="log.silent_endpoints",
        default=[],
        metavar="PATH...",
        commands=("serve",),
        help="Paths whose requests get no line, such as /metrics.",
    ),
    Flag(
        name="enable-orch-monitor",
        kind="bool",
        group="log",
        target="log.orch_monitor",
        default=_DEFAULT.orch_monitor,
        commands=("serve",),
        help="Let each API worker write every second, as a line of JSON in omni-orchestrator-PID.jsonl in the working "
        "directory, what its orchestrator does: requests at each replica, load and lag of the event loop.",
    ),
)
