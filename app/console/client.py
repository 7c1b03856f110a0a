"""What commands ask a running server, over its HTTP port."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import click
import msgspec

from app.protocol.errors import ErrorBody

PATIENCE_S = 30.0
_DEFAULT_PORT = 8091


class Server(msgspec.Struct, frozen=True):
    """Where it answers, and the API key that it wants ("": none)."""

    url: str
    key: str

    def ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """GET the path, or POST a JSON body to it.

        Raises:
            click.ClickException: there is no server, or it refuses; in words.
        """
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise click.ClickException(_reason(error)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise click.ClickException(f"no server answers at {self.url}: {reason}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return msgspec.json.decode(error.read(), type=ErrorBody).error.message
    except msgspec.DecodeError:
        return f"{error.url}: {error.code} {error.reason}"


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of commands that ask a server."""
    key = click.option(
        "--api-key",
        "key",
        default=lambda: os.environ.get("OMNI_API_KEY", "").split(",")[0],
        help="Its API key.  [default: OMNI_API_KEY]",
    )
    port = os.environ.get("OMNI_PORT", _DEFAULT_PORT)
    url = click.option("--url", default=f"http://127.0.0.1:{port}", show_default=True, help="Address of the server.")
    return url(key(command))
