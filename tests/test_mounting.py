"""Scopes as hosts and proxies hand them over."""

from __future__ import annotations

from typing import Any, cast

import pytest
from litestar.types import Scope

from app.mounting import mounted_scope


def mounted(path: str, root: str, raw: str | None = None, configured: str = "") -> tuple[str, str]:
    scope: dict[str, Any] = {"type": "http", "path": path, "root_path": root, "raw_path": (raw or path).encode()}
    result = mounted_scope(cast("Scope", scope), configured)
    return result["path"], result["root_path"]


@pytest.mark.parametrize(
    ("path", "root", "raw", "configured", "expected"),
    [
        ("/v1/x", "", None, "", ("/v1/x", "")),
        ("/v1/x/", "", None, "", ("/v1/x/", "")),
        ("/", "", None, "", ("/", "")),
        # Starlette, FastAPI: the whole path
        ("/omni/v1/x", "/omni", None, "", ("/omni/v1/x", "/omni")),
        ("/omni", "/omni", None, "", ("/omni", "/omni")),
        # a server told of a prefix that the proxy has taken off
        ("/v1/x", "/omni", None, "", ("/omni/v1/x", "/omni")),
        ("/v1/x", "/omni/", None, "", ("/omni/v1/x", "/omni")),
        # a prefix that is the beginning, or a part, of a path
        ("/v1/x", "/v", None, "", ("/v/v1/x", "/v")),
        ("/v1/omni/x", "/omni", None, "", ("/omni/v1/omni/x", "/omni")),
        # Litestar host: prefix taken off, slash appended, no root_path
        ("/v1/x/", "", "/a/omni/v1/x", "", ("/a/omni/v1/x/", "/a/omni")),
        ("/", "", "/a/omni", "", ("/a/omni/", "/a/omni")),
        ("/v1/ä b/", "", "/a/v1/%C3%A4%20b", "", ("/a/v1/ä b/", "/a")),
        ("/v1/x", "", "/v1/x?y=/z", "", ("/v1/x", "")),
        # --root-path, proxy strips or not, mounted or not
        ("/v1/x", "", None, "/pre", ("/pre/v1/x", "/pre")),
        ("/pre/v1/x", "", None, "/pre", ("/pre/v1/x", "/pre")),
        ("/pre/v1/x", "/pre", None, "/pre", ("/pre/v1/x", "/pre")),
        ("/omni/v1/x", "/omni", None, "/pre", ("/pre/omni/v1/x", "/pre/omni")),
        ("/pre/omni/v1/x", "/pre/omni", None, "/pre", ("/pre/omni/v1/x", "/pre/omni")),
    ],
)
def test_path_begins_with_the_whole_prefix(
    path: str, root: str, raw: str | None, configured: str, expected: tuple[str, str]
) -> None:
    assert mounted(path, root, raw, configured) == expected


def test_scope_of_the_host_is_not_changed() -> None:
    scope: dict[str, Any] = {"type": "http", "path": "/v1/x", "root_path": "/omni", "raw_path": b"/v1/x"}
    mounted_scope(cast("Scope", scope))
    assert scope["path"] == "/v1/x"
