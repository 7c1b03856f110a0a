"""Rows of the flag table for who may call the server, and for the links that it gives out."""

from __future__ import annotations

from app.settings.flags import Flag
from app.settings.schema import ServerConfig

_DEFAULT = ServerConfig()

ACCESS_FLAGS = (
    Flag(
        name="api-key-file",
        kind="str",
        group="server",
        target="input",
        metavar="FILE",
        commands=("serve",),
        help="File with more keys, one a line; blank lines and lines that begin with # do not count.",
    ),
    Flag(
        name="allowed-origins",
        kind="list",
        group="server",
        target="server.allowed_origins",
        default=[],
        metavar="ORIGIN...",
        commands=("serve",),
        help="Web sites whose pages may call the server from a browser (CORS): https://chat.example.org, "
        "https://*.example.org, or * for all. None given: no page of another origin can.",
    ),
    Flag(
        name="allowed-methods",
        kind="list",
        group="server",
        target="server.allowed_methods",
        default=_DEFAULT.allowed_methods,
        metavar="METHOD...",
        commands=("serve",),
        help="Methods that those pages may use.",
    ),
    Flag(
        name="allowed-headers",
        kind="list",
        group="server",
        target="server.allowed_headers",
        default=_DEFAULT.allowed_headers,
        metavar="HEADER...",
        commands=("serve",),
        help="Request headers that those pages may send.",
    ),
    Flag(
        name="allow-credentials",
        kind="bool",
        group="server",
        target="server.allow_credentials",
        default=False,
        commands=("serve",),
        help="Let those pages send cookies and client certificates, for a proxy that asks for them.",
    ),
    Flag(
        name="max-header-bytes",
        kind="size",
        group="server",
        target="server.max_header_bytes",
        default=_DEFAULT.max_header_bytes,
        least=1024,
        metavar="SIZE",
        commands=("serve",),
        help="Most bytes of all headers of a request together; more get 431.",
    ),
    Flag(
        name="keep-alive-timeout",
        kind="float",
        group="server",
        target="server.keep_alive_timeout_s",
        default=_DEFAULT.keep_alive_timeout_s,
        least=0.1,
        most=86400,
        metavar="SECONDS",
        commands=("serve",),
        help="How long a connection may wait for its next request, or take to send the head of one.",
    ),
    Flag(
        name="max-connections",
        kind="int",
        group="server",
        target="server.max_connections",
        default=_DEFAULT.max_connections,
        least=16,
        most=65535,
        commands=("serve",),
        help="Connections that one worker holds open; more wait. Far above what --max-queue lets in, so that overload "
        "is answered with 429, and /health is not left waiting. Never more than the limit of open files allows.",
    ),
    Flag(
        name="disable-docs",
        kind="bool",
        group="server",
        target="server.disable_docs",
        default=False,
        aliases=("--disable-fastapi-docs",),
        commands=("serve",),
        help="Do not serve /docs and /openapi.json.",
    ),
    Flag(
        name="public-base-url",
        kind="str",
        group="server",
        target="server.public_base_url",
        default="",
        metavar="URL",
        commands=("serve",),
        help="What links to generated files begin with, such as https://ai.example.org/omni. Default: the address that "
        "the request was sent to, which behind a proxy may not be the one that clients know.",
    ),
    Flag(
        name="generated-file-lifetime",
        kind="float",
        group="server",
        target="server.generated_file_lifetime_s",
        default=_DEFAULT.generated_file_lifetime_s,
        least=1,
        metavar="SECONDS",
        commands=("serve",),
        help="How long a picture can be fetched that was asked for as a link, and a video that was made in the "
        "background.",
    ),
    Flag(
        name="generated-files-bytes",
        kind="size",
        group="server",
        target="server.generated_files_bytes",
        default=_DEFAULT.generated_files_bytes,
        least=1 << 20,
        metavar="SIZE",
        commands=("serve",),
        help="Most bytes of such files together; the oldest make room for new ones.",
    ),
)
