"""Rows of the flag table for how the server listens other than on a plain TCP port: TLS, a Unix socket."""

from __future__ import annotations

from typing import Any

from app.settings.flags import Flag
from app.settings.values import ValueKind


def _row(name: str, help: str, kind: ValueKind = "str", default: Any = "", **more: Any) -> Flag:
    target = f"server.{name.replace('-', '_')}"
    return Flag(
        name=name, kind=kind, group="server", target=target, default=default, commands=("serve",), help=help, **more
    )


TLS_FLAGS = (
    _row("uds", "Unix socket to listen on in place of --host and --port.", metavar="PATH"),
    _row("ssl-certfile", "Certificate, with its chain, in PEM: the server speaks HTTPS.", metavar="FILE"),
    _row("ssl-keyfile", "Private key of that certificate, in PEM, without a password.", metavar="FILE"),
    _row("ssl-ca-certs", "Authorities, in PEM, that may have signed clients' certificates.", metavar="FILE"),
    _row(
        "ssl-cert-reqs",
        "2: every client must show a certificate of those authorities; 0: none is asked for.",
        "int",
        0,
        least=0,
        most=2,
    ),
)
