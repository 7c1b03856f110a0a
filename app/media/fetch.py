"""The only place that fetches a URL or opens a path which a client has sent. Runs in replica processes.

The client is aiohttp: its connector asks for each socket with the very address that it is about to connect to. The
address policy sits there, so that a name which resolves to something else a moment later gains nothing, and literal,
translated and redirected addresses all pass the same gate, while TLS still verifies the name.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec
from aiohttp import hdrs
from aiohttp.abc import AbstractResolver
from yarl import URL

from app.media import dataurl
from app.media.errors import MediaError, invalid, refused, too_large, unavailable
from app.media.policy import AddressPolicy, HostList, is_public
from app.settings.schema import MediaConfig

_MAX_URL = 8192
_CHUNK = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OUTSIDE = "the file is not there, is no regular file, or is outside of the directory of --allowed-local-media-path"


class Media(msgspec.Struct, frozen=True):
    """Content, and the media type as its source gave it (lower case, without parameters, may be empty or wrong)."""

    data: bytes
    media_type: str = ""


class MediaFetcher:
    """Loads what a URL of a request stands for, within the limits of `config`. Shared by all requests of a replica."""

    def __init__(
        self, config: MediaConfig, *, may_connect: AddressPolicy = is_public, resolver: AbstractResolver | None = None
    ) -> None:
        """Raises ValueError: an entry of allowed_media_domains is not a host name."""
        self.limits = config
        self._hosts = HostList(config.allowed_media_domains)
        path = config.allowed_local_media_path
        self._directory = os.path.realpath(path) if path else None
        self._may_connect = may_connect
        self._resolver = resolver

    async def fetch(self, url: str, *, max_bytes: int | None = None) -> Media:
        """The content of a data:, http(s): or file: URL; `max_bytes` may only lower the configured limit.

        Raises:
            MediaError: 400, malformed, refused or not to be had in time; 413, too large.
        """
        limit = min(self.limits.max_bytes, max_bytes or self.limits.max_bytes)
        scheme = url[:16].partition(":")[0].lower()
        match scheme:
            case "data":
                media_type, data = await asyncio.to_thread(dataurl.decode, url, limit)
                return Media(data, media_type)
            case "http" | "https":
                return await self._download(url, limit)
            case "file":
                return Media(await asyncio.to_thread(self._read_file, url, limit))
        raise invalid("media is given as a URL with one of the schemes data:, https:, http:, file:")

    # ------------------------------------------------------------------------------------------------ http, https

    async def _download(self, text: str, limit: int) -> Media:
        seconds = self.limits.timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(text, limit)
        except TimeoutError as error:
            raise unavailable(f"the media did not arrive within {seconds:g} s (--media-timeout)") from error
        except aiohttp.ClientError as error:
            raise unavailable(f"the media could not be fetched: {_reason(error)}") from error

    async def _follow(self, text: str, limit: int) -> Media:
        url = self._checked(text)
        async with self._session() as session:
            for _ in range(self.limits.max_redirects + 1):
                async with session.get(url, allow_redirects=False) as response:
                    location = response.headers.get(hdrs.LOCATION)
                    if response.status not in _REDIRECTS or location is None:
                        return await _read(response, limit)
                url = self._checked(location, base=url)
        raise unavailable(f"the URL redirects more than {self.limits.max_redirects} times (--max-media-redirects)")

    def _session(self) -> aiohttp.ClientSession:
        """A session for one medium: requests share no connection, cookie or name with each other."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._resolver,
                use_dns_cache=False,
                socket_factory=self._open_socket,
                happy_eyeballs_delay=None,
                force_close=True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={hdrs.ACCEPT_ENCODING: "identity", hdrs.USER_AGENT: "omni-app"},
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
        )

    def _open_socket(self, info: Any) -> socket.socket:
        """aiohttp's hook: `info` is the getaddrinfo entry that it connects the socket to, and nothing else."""
        family, kind, protocol, _, address = info
        if not self._may_connect(ip_address(address[0])):
            raise refused("the URL leads to an address that is not on the public internet")
        return socket.socket(family, kind, protocol)

    def _checked(self, text: str, base: URL | None = None) -> URL:
        """The URL, if its host is allowed; the same object is fetched, so no second parser can read it differently."""
        url = _parse(text, base)
        host = url.raw_host or ""
        if not self._hosts:
            raise refused(
                "this server fetches no media from other hosts: send a data URL (data:image/png;base64,...), "
                "or have it started with --allowed-media-domains"
            )
        if host not in self._hosts:
            raise refused(f"this server fetches no media from the host {host[:253]!r} (--allowed-media-domains)")
        return url

    # ------------------------------------------------------------------------------------------------ file

    def _read_file(self, url: str, limit: int) -> bytes:
        if self._directory is None:
            raise refused("this server reads no local files for requests (--allowed-local-media-path)")
        try:
            descriptor = self._open_inside(_file_path(url))
        except OSError as error:
            raise refused(_OUTSIDE) from error
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise too_large(f"the file has more than {limit} bytes (--max-media-bytes)")
        return data

    def _open_inside(self, path: str) -> int:
        """A descriptor of a regular file in the directory.

        Raises:
            OSError: there is none.
            MediaError: it is elsewhere, or something else.
        """
        resolved = os.path.realpath(path)
        if not self._holds(resolved):
            raise refused(_OUTSIDE)
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # opening a FIFO must not block
        # A directory on the way may have become a link since: what counts is where the open file is.
        actual = os.path.realpath(f"/proc/self/fd/{descriptor}")
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and self._holds(actual):
            return descriptor
        os.close(descriptor)
        raise refused(_OUTSIDE)

    def _holds(self, path: str) -> bool:
        assert self._directory is not None
        return os.path.commonpath([self._directory, path]) == self._directory


def _parse(text: str, base: URL | None) -> URL:
    if len(text) > _MAX_URL:
        raise invalid(f"the URL has more than {_MAX_URL} characters")
    if "\\" in text or any(character <= " " or character == "\x7f" for character in text):
        raise invalid("the URL contains blanks, control characters or backslashes")
    try:
        url = URL(text) if base is None else base.join(URL(text))
        complete = url.scheme in ("http", "https") and url.raw_host and url.port
    except ValueError as error:
        raise invalid("the URL is malformed") from error
    if not complete:
        raise invalid("the URL has no host, or redirects to something other than http: and https:")
    if url.raw_user is not None or url.raw_password is not None:
        raise refused("the URL contains a user name or password; media is fetched without")
    return url


def _file_path(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise invalid("the file URL is malformed") from error
    path = unquote(parts.path, errors="surrogateescape")
    if parts.netloc.lower() not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise invalid("a file URL has the form file:///directory/name")
    return path


async def _read(response: aiohttp.ClientResponse, limit: int) -> Media:
    if response.status != 200:
        raise unavailable(f"the media could not be fetched: its host answered with status {response.status}")
    if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise unavailable("the media's host sent it compressed, although it was asked not to")
    data = bytearray()
    if (response.content_length or 0) <= limit:
        async for chunk in response.content.iter_chunked(_CHUNK):
            data += chunk
            if len(data) > limit:
                break
        else:
            return Media(bytes(data), response.content_type.lower())
    raise too_large(f"the media has more than {limit} bytes (--max-media-bytes)")


def _reason(error: aiohttp.ClientError) -> str:
    """In words of ours: those of the library contain addresses."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "the name of its host does not resolve"
        case aiohttp.ClientSSLError():
            return "the certificate or the encryption of its host is not accepted"
        case aiohttp.ClientConnectionError():
            return "the connection to its host failed"
        case aiohttp.ClientPayloadError():
            return "the transfer broke off"
        case aiohttp.InvalidURL():
            return "the URL is malformed"
    return "its host does not speak HTTP properly"


__all__ = ["Media", "MediaError", "MediaFetcher"]
