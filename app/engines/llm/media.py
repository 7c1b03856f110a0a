"""What vLLM may load for image, audio and video parts: the bytes inside a data URL, and nothing else.

vLLM's own connector opens any http(s) URL and, when told so, local files; a request could then reach inside the
network of the server. Until app/media/fetch.py exists, such a URL is refused.
"""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

CONNECTOR = "omni-app"
"""The value of VLLM_MEDIA_CONNECTOR that selects this module's connector."""


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class DataUrlConnector(MediaConnector):  # type: ignore[misc]
    """vLLM's media connector, restricted to data URLs."""

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """The decoded medium.

        Raises:
            VLLMValidationError: the URL is not a base64 data URL.
        """
        _refuse_remote(url)
        return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """As load_from_url; decodes outside the event loop."""
        _refuse_remote(url)
        return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)


def _refuse_remote(url: str) -> None:
    if url[:5].lower() == "data:":
        return
    scheme = url.partition(":")[0][:16]
    raise VLLMValidationError(
        f"media of scheme {scheme!r} is not loaded: send it as a data URL (data:image/png;base64,...). "
        "Fetching from other hosts needs the server flag --allowed-media-domains",
        parameter="messages",
    )
