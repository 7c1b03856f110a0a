"""What is wrong with a medium that a client has sent or named."""

from __future__ import annotations

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.protocol.errors import default_type


class MediaError(EngineError):
    """A client's mistake, so 400 or 413; engines let it pass.

    The message names neither addresses nor paths: what a host name resolves to, and which files exist, is no business
    of the client. `source` is the URL, where whoever raises it knows; it tells which of several media is meant.
    """

    source: str = ""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(Failed(status, message, default_type(status), param, code))

    def at(self, param: str) -> MediaError:
        """The same error, told of the request's field `param`."""
        return MediaError(self.failed.status, self.failed.message, code=self.failed.code or "", param=param)


def invalid(message: str) -> MediaError:
    """Not what it claims to be, or not readable."""
    return MediaError(400, message, code="invalid_media")


def refused(message: str) -> MediaError:
    """This server does not fetch it."""
    return MediaError(400, message, code="media_not_allowed")


def unavailable(message: str) -> MediaError:
    """It was asked for, and did not come."""
    return MediaError(400, message, code="media_unavailable")


def too_large(message: str) -> MediaError:
    """Over one of the limits."""
    return MediaError(413, message, code="media_too_large")
