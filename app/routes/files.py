"""GET /v1/files/generated/{name}: what was made for a client, for those who know its link."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath

from app.protocol.errors import ApiError
from app.protocol.imageanswers import Link
from app.routes.docs import root_path
from app.routes.openapi import ERRORS
from app.routes.state import generated, settings

_PATH = "/v1/files/generated"
MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "avif": "image/avif"}


@get(
    f"{_PATH}/{{name:str}}",
    opt={"public": True},
    responses={404: ERRORS[404]},
    raises=[],
    tags=["files"],
    operation_id="getGeneratedFile",
    summary="A generated file, by its link",
)
async def get_generated_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    """No API key is asked for: browsers send none, and the name is a secret that only the answer with the link held.

    Raises:
        ApiError: 404, there is no such file, or it has expired.
    """
    found = await generated(request.app).read(name)
    if found is None:
        message = "There is no such file; links to generated files expire."
        raise ApiError(404, message, param="name", code="file_not_found")
    content, expires = found
    headers = {
        "ETag": f'"{name}"',
        "Cache-Control": f"private, max-age={max(0, expires - int(time.time()))}, immutable",
        "Content-Disposition": f'inline; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    if name in request.headers.get("if-none-match", ""):
        return Response(b"", status_code=304, headers=headers)
    return Response(content, media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


async def link_to(request: Request[Any, Any, Any], content: bytes | memoryview, suffix: str) -> Link:
    """Keep a file for as long as the server does that; where the client finds it."""
    name, expires = await generated(request.app).save(content, suffix)
    return Link(f"{_base_url(request)}{_PATH}/{name}", expires)


def _base_url(request: Request[Any, Any, Any]) -> str:
    """Where this application is reached: as the settings say, else as the client itself has reached it."""
    if base := settings(request.app).server.public_base_url:
        return base
    scheme = request.scope["scheme"]
    return f"{scheme}://{request.headers.get('host', request.url.netloc)}{root_path(request)}"
