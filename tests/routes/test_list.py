"""docs/routes.md names every route: ours as served, and vLLM's other ones with the reason why not."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from litestar.enums import ScopeType

from tests.routes.serving import Served

Route = tuple[str, str]

_ROW = re.compile(r"^\| `(GET|POST|DELETE|WEBSOCKET) (\S+)` \|(.*)\|$", re.MULTILINE)
_DECORATOR = re.compile(r'@\w*router\.(get|post|put|delete|websocket)\(\s*"([^"]+)"')
_VLLM = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "vllm" / "entrypoints"


def documented(section: str) -> dict[Route, str]:
    page = Path(__file__).parents[2].joinpath("docs", "routes.md").read_text()
    text = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return {(method, path): rest.strip() for method, path, rest in _ROW.findall(text)}


def ours() -> Iterator[Route]:
    for route in Served().litestar.routes:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        if route.scope_type == ScopeType.WEBSOCKET:
            yield "WEBSOCKET", path
        elif not path.startswith("/docs"):
            yield from ((method, path) for method in getattr(route, "methods", ()) if method != "OPTIONS")


def of_vllm() -> Iterator[Route]:
    for file in _VLLM.rglob("*.py"):
        yield from ((method.upper(), path) for method, path in _DECORATOR.findall(file.read_text()))


def test_the_served_routes_are_those_of_the_application() -> None:
    assert documented("Served").keys() == set(ours())


def test_every_route_of_vllm_is_listed() -> None:
    routes = set(of_vllm())
    assert len(routes) > 60, "they are declared in another way now"
    assert routes <= documented("Served").keys() | documented("Not served").keys()


def test_what_is_not_served_says_why() -> None:
    refused = documented("Not served")
    assert refused.keys().isdisjoint(documented("Served"))
    assert all(len(reason) > 8 for reason in refused.values())
