"""GET /version."""

from __future__ import annotations

from importlib import metadata

import msgspec
from litestar import get


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "0+source"


VERSION = _installed("omni-app")
"""The version of the installed distribution; "0+source" when the package runs from an uninstalled source tree."""


class Version(msgspec.Struct):
    """The body of /version."""

    version: str


@get("/version", tags=["server"], summary="The version of the server", sync_to_thread=False)
def version() -> Version:
    """The version of the installed omni-app distribution."""
    return Version(VERSION)
