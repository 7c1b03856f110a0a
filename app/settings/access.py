"""Checks of what decides who may call the server, and under which address: keys, token, browser origins, links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from app.settings.schema import MasterConfig, ServerConfig
from app.settings.sources import Given

_BASE = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", re.IGNORECASE)


def take_keys(server: ServerConfig, given: Mapping[str, Given], origins: dict[str, str], problems: list[str]) -> None:
    """Add the keys of --api-key-file. Whoever asks for keys and names none gets a problem, never an open server."""
    if "api_key" in given and not any(server.api_keys):
        problems.append(f"{given['api_key'].origin}: there is no key in it; leave it out to serve without keys")
    file = given.get("api_key_file")
    if file is None:
        return
    try:
        keys = [key for line in Path(file.value).read_text().splitlines() if (key := line.strip()) and key[0] != "#"]
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file.origin}: cannot read {file.value}: {error}")
        return
    if not keys:
        problems.append(f"{file.origin}: there is no key in {file.value}")
    origins["server.api_keys"] = file.origin if not server.api_keys else f"{origins['server.api_keys']}, {file.origin}"
    server.api_keys = list(dict.fromkeys([*server.api_keys, *keys]))


def take_token(master: MasterConfig, given: Mapping[str, Given], origins: dict[str, str], problems: list[str]) -> None:
    """Read --omni-token-file; one secret has one place."""
    file = given.get("omni_token_file")
    if file is None:
        return
    if master.token:
        problems.append(f"{file.origin}: the token is given by {origins['master.token']}, too; remove one of them")
        return
    try:
        master.token = Path(file.value).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file.origin}: cannot read {file.value}: {error}")
        return
    origins["master.token"] = file.origin
    if not master.token:
        problems.append(f"{file.origin}: there is no token in {file.value}")


def check_origins(server: ServerConfig, problems: list[str]) -> None:
    """Origins are compared as browsers send them, so a path or a slash at the end would never match.

    The address that links begin with is one of ours, so it is looked at here; it loses its last slash.
    """
    server.public_base_url = server.public_base_url.rstrip("/")
    if server.public_base_url and not _BASE.fullmatch(server.public_base_url):
        problems.append(f"--public-base-url: {server.public_base_url!r} is no address such as https://ai.example.org")
    problems += (
        f"--allowed-origins: {origin!r} is no origin; give scheme and host, https://chat.example.org"
        for origin in server.allowed_origins
        if origin != "*" and not _ORIGIN.fullmatch(origin)
    )
    if server.allow_credentials and "*" in server.allowed_origins:
        problems.append(
            "--allow-credentials with --allowed-origins * would let every web site act for its visitors: name them"
        )
