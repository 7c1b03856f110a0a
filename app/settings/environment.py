"""OMNI_* variables: each is a flag without a leading `omni-`; what is not one is reported, never ignored in silence."""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.settings.flags import by_variable
from app.settings.problems import near

PREFIX = "OMNI_"
SETTINGS_FILE = "OMNI_SETTINGS_FILE"

INTERNAL = {
    SETTINGS_FILE: "private file with the flags that `omni-app serve` was started with",
    "OMNI_RUN_DIR": "directory for locks and sockets of one server",
    "OMNI_CACHE_DIR": "where converted demo models are kept",
}
"""Variables that have no flag."""

_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)\b|_SERVICE_PORT_|_PORT_\d+_(TCP|UDP|SCTP)")


def read(
    environ: Mapping[str, str], typed: Mapping[str, object], problems: list[str], warnings: list[str]
) -> dict[str, object]:
    """Values by flag key. An empty variable counts as not set, a variable whose flag was typed is not read."""
    values: dict[str, object] = {}
    links = [name for name, text in environ.items() if name.startswith(PREFIX) and _is_service_link(name, text)]
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in INTERNAL or text == "":
            continue
        flag = by_variable().get(name)
        if flag is None:
            if name not in links:
                warnings.append(f"{name} is set, but there is no such setting{near(name, by_variable(), PREFIX)}")
        elif flag.key in typed:
            continue
        elif name in links:
            problems.append(_service_link_problem(name, text, flag.name))
        else:
            try:
                values[flag.key] = flag.value(text)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    return values


def _is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes made this variable because a service in the namespace is called `omni` or `omni-...`."""
    return text.startswith(("tcp://", "udp://", "sctp://")) or _SERVICE_LINK.search(name) is not None


def _service_link_problem(name: str, text: str, flag: str) -> str:
    return (
        f"{name}={text} was not set by you but by Kubernetes, for a service whose name begins with omni. "
        f"Set `enableServiceLinks: false` in the pod, or rename the service, or pass --{flag}"
    )
