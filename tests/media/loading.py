"""A MediaFetcher for tests, and what its refusals say."""

from __future__ import annotations

from typing import Any

import pytest

from app.media.errors import MediaError
from app.media.fetch import MediaFetcher
from app.media.policy import IPAddress, is_public
from app.settings.schema import MediaConfig
from tests.media.web import Names

HOSTS = ["media.test", "*.cdn.test"]


def loopback_too(address: IPAddress) -> bool:
    """The policy of these tests: 127.0.0.1 plays the public internet, every other private address is refused."""
    return str(address) == "127.0.0.1" or is_public(address)


def fetcher(names: Names | None = None, **limits: Any) -> MediaFetcher:
    config = MediaConfig(**{"allowed_media_domains": HOSTS, "timeout_s": 5.0, "max_bytes": 1000, **limits})
    return MediaFetcher(config, may_connect=loopback_too, resolver=names or Names(media_test=["127.0.0.1"]))


async def refusal(loader: MediaFetcher, url: str) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await loader.fetch(url)
    assert "127.0.0.1" in url or "127.0.0.1" not in caught.value.failed.message
    return caught.value


def verdict(error: MediaError) -> tuple[int, str | None]:
    return error.failed.status, error.failed.code


REFUSED = (400, "media_not_allowed")
INVALID = (400, "invalid_media")
UNAVAILABLE = (400, "media_unavailable")
TOO_LARGE = (413, "media_too_large")
