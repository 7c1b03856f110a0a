"""Make a scope say where the application is mounted as Litestar's router needs it: the path starts with root_path.

Hosts and proxies differ: Starlette and FastAPI give the full path and a root_path, a Litestar host strips its prefix
from the path and sets no root_path, a proxy may or may not strip the prefix that the server was told of.
"""

from __future__ import annotations

from typing import cast
from urllib.parse import unquote

from litestar.types import Scope


def mounted_scope(scope: Scope, configured_root: str = "") -> Scope:
    """The scope with `root_path` set to the whole prefix and `path` beginning with it.

    `configured_root` is the prefix that a proxy in front of the server serves us under (--root-path).
    """
    path = scope["path"]
    root = scope.get("root_path", "").rstrip("/") or _stripped_by_host(scope)
    outer = configured_root.rstrip("/")
    if outer and not _starts_with(root, outer):
        root, path = outer + root, path if _starts_with(path, outer) else outer + _under(path, root)
    if not root:
        return scope
    return cast("Scope", {**scope, "root_path": root, "path": _under(path, root)})


def _under(path: str, root: str) -> str:
    return path if _starts_with(path, root) else root + path


def _starts_with(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")


def _stripped_by_host(scope: Scope) -> str:
    """The prefix that a host took off the path, told by the raw path of the request; "" if it took none."""
    raw = scope.get("raw_path") or b""
    full = "/" + "/".join(part for part in unquote(raw.decode("latin-1").partition("?")[0]).split("/") if part)
    rest = scope["path"].rstrip("/")
    if len(full) > len(rest) and full.endswith(rest):
        return full[: len(full) - len(rest)].rstrip("/")
    return ""
