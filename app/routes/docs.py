"""/docs and /openapi.json. Every asset is shipped with the package; every link holds under a mount prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, Router, get
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import FromPath

from app.routes.auth import require_key
from app.routes.version import VERSION

_ASSETS = Path(__file__).parent / "assets"
_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>omni-app</title>
<link rel="icon" href="{root}/docs/assets/favicon-32x32.png">
<link rel="stylesheet" href="{root}/docs/assets/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="{root}/docs/assets/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({{url: "{root}/openapi.json", dom_id: "#docs", deepLinking: true}})</script>
</body>
</html>
"""


class _DocsPage(OpenAPIRenderPlugin):
    """The page under /docs itself."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return _PAGE.format(root=root_path(request)).encode()


class _DocsSchema(JsonRenderPlugin):
    """/docs/openapi.json, where Litestar puts the document by itself: the same as /openapi.json."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return _with_servers(request, openapi_schema)


@get("/openapi.json", include_in_schema=False, media_type="application/json", sync_to_thread=False)
def openapi_json(request: Request[Any, Any, Any]) -> bytes:
    """The OpenAPI document; `servers` names the prefix under which this request came in.

    Raises:
        NotFoundException: the server does not show it (--disable-docs).
    """
    if request.app.openapi_config is None:
        raise NotFoundException
    return _with_servers(request, request.app.openapi_schema.to_schema())


@get("/assets/{name:str}", include_in_schema=False, sync_to_thread=True)
def asset(name: FromPath[str]) -> Response[bytes]:
    """One of the files that the page needs.

    Raises:
        NotFoundException: it is none of them; no other path is ever opened.
    """
    media_type = _MEDIA_TYPES.get(name)
    if media_type is None:
        raise NotFoundException
    headers = {"Cache-Control": "public, max-age=86400"}
    compressed = _ASSETS / f"{name}.gz"
    if compressed.exists():
        headers["Content-Encoding"] = "gzip"
        return Response(compressed.read_bytes(), media_type=media_type, headers=headers)
    return Response((_ASSETS / name).read_bytes(), media_type=media_type, headers=headers)


def openapi_config() -> OpenAPIConfig:
    """A new OpenAPIConfig for one application (Litestar adds its own handlers to the router in it)."""
    return OpenAPIConfig(
        title="omni-app",
        version=VERSION,
        description="OpenAI-compatible server for omni-modal models.",
        use_handler_docstrings=True,
        components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"key": []}, {}],
        render_plugins=[_DocsPage(), _DocsSchema()],
        openapi_router=Router(
            "/docs",
            route_handlers=[asset],
            guards=[require_key],
            include_in_schema=False,
            after_request=_json_404,
        ),
    )


def root_path(request: Request[Any, Any, Any]) -> str:
    """The prefix under which the application is reached, "" at the root of a host."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _with_servers(request: Request[Any, Any, Any], schema: dict[str, Any]) -> bytes:
    return msgspec.json.encode({**schema, "servers": [{"url": root_path(request) or "/"}]})


def _json_404(response: Response[Any]) -> Response[Any]:
    """Litestar answers unknown paths below its docs router in HTML; ours are JSON like every other."""
    if response.status_code == 404:
        raise NotFoundException
    return response
