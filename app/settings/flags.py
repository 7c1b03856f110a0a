"""Every flag, once. Command line options, OMNI_* variables, deploy YAML keys, validation and help all come from here.

The rows are in the modules table_*.py; this module has their shape and the look-ups.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from app.settings.values import ValueKind, parse

Group = Literal[
    "model", "server", "log", "stages", "cluster", "engine", "frontend", "vllm", "media", "speech", "diffusion", "other"
]
Command = Literal["serve", "headless"]
Status = Literal["works", "refused"]

GROUPS: dict[Group, str] = {
    "model": "Model",
    "server": "HTTP server",
    "log": "Logs",
    "stages": "Stages and deployment",
    "cluster": "Master, replicas and time-outs",
    "media": "Media that requests carry or name",
    "speech": "Speech and voices",
    "engine": "LLM engine (vLLM)",
    "frontend": "Chat, tools and adapters (vLLM)",
    "diffusion": "Diffusion stages",
    "other": "Flags of vllm-omni and vLLM that are not in use",
    "vllm": "Every other argument of vLLM, by its own name (see vLLM's documentation)",
}


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    `target` says where the value goes: "server.x", "master.x", "media.x", "speech.x" and "log.x" are fields of
    Settings, "engine.x" is the engine argument x of every stage whose kind is in `kinds`, "stage.x" a field of those
    stages, and "input" means that resolve() consumes it (which model, which files). `default` of engine flags is None:
    the engine's own. `least` and `most` bound numbers. `commands` are the commands that take the flag.

    A `refused` flag is known and never accepted; `reason` says why and what to use. `needs` tells which
    hardware a flag is for. `never`: values of users of vllm-omni that no engine here can honour, with why and what to
    use. `prefix`: of its environment variable, where another flag has the plain one.
    """

    name: str
    kind: ValueKind
    group: Group
    target: str
    help: str
    default: Any = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    never: Mapping[str, str] = {}
    least: float | None = None
    most: float | None = None
    metavar: str = ""
    kinds: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ("serve", "headless")
    short: bool = False
    secret: bool = False
    status: Status = "works"
    reason: str = ""
    needs: str = ""
    prefix: str = ""

    @property
    def key(self) -> str:
        """Its name in Python and YAML."""
        return self.name.replace("-", "_")

    @property
    def field(self) -> str:
        """The last part of `target`."""
        return self.target.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "OMNI_" + self.prefix + self.name.removeprefix("omni-").replace("-", "_").upper()

    @property
    def options(self) -> list[str]:
        """All spellings on the command line."""
        return [f"--{self.name}", *self.aliases]

    def value(self, given: object) -> Any:
        """The typed value of what was given by any source.

        Raises:
            ValueError: it is not acceptable; the message does not name the flag.
        """
        if self.status != "works":
            raise ValueError(self.refusal)
        value = parse(self.kind, given)
        if isinstance(value, str) and value in self.never:
            raise ValueError(f"{value} is not accepted: {self.never[value]}")
        if self.choices and isinstance(value, str):
            value = {choice.lower(): choice for choice in self.choices}.get(value.lower(), value)
        if self.choices and value not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}; got {given!r}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        return value

    @property
    def refusal(self) -> str:
        """Why no value is accepted."""
        return f"not accepted: {self.reason}"

    def _check_bounds(self, value: float) -> None:
        if self.least is not None and value < self.least:
            raise ValueError(f"must be at least {self.least:g}, got {value:g}")
        if self.most is not None and value > self.most:
            raise ValueError(f"must be at most {self.most:g}, got {value:g}")


@functools.cache
def flags() -> tuple[Flag, ...]:
    """The whole table, in the order of the help."""
    from app.settings.table_access import ACCESS_FLAGS
    from app.settings.table_cluster import CLUSTER_FLAGS
    from app.settings.table_diffusion import DIFFUSION_FLAGS
    from app.settings.table_engine import ENGINE_FLAGS
    from app.settings.table_log import LOG_FLAGS
    from app.settings.table_media import MEDIA_FLAGS
    from app.settings.table_peer import PEER_FLAGS
    from app.settings.table_server import SERVER_FLAGS
    from app.settings.table_speech import SPEECH_FLAGS
    from app.settings.table_speech_stage import SPEECH_STAGE_FLAGS
    from app.settings.table_tls import TLS_FLAGS
    from app.settings.table_vllm import VLLM_FLAGS

    return (
        *SERVER_FLAGS,
        *CLUSTER_FLAGS,
        *ACCESS_FLAGS,
        *TLS_FLAGS,
        *LOG_FLAGS,
        *MEDIA_FLAGS,
        *SPEECH_FLAGS,
        *SPEECH_STAGE_FLAGS,
        *ENGINE_FLAGS,
        *VLLM_FLAGS,
        *DIFFUSION_FLAGS,
        *PEER_FLAGS,
    )


@functools.cache
def by_key() -> dict[str, Flag]:
    """Flags by their name with underscores."""
    return {flag.key: flag for flag in flags()}


@functools.cache
def by_variable() -> dict[str, Flag]:
    """Flags by their environment variable. One that is refused has none: some would have the variable of another."""
    return {flag.variable: flag for flag in flags() if flag.status != "refused"}


@functools.cache
def by_engine_argument() -> dict[str, Flag]:
    """The flags that are engine arguments, by the engine's own name."""
    return {flag.field: flag for flag in flags() if flag.target.startswith("engine.")}
