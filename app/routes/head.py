"""HEAD on every GET route: the same head, no body."""

from __future__ import annotations

from typing import cast

from litestar.types import Message, Scope, Send


def head_as_get(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """A HEAD request as a GET whose answer loses its body on the way out; every other request as it is."""
    if scope.get("method") != "HEAD":
        return scope, send

    async def send_without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return cast("Scope", {**scope, "method": "GET"}), send_without_body
