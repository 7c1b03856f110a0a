"""The server's own log: text or JSON lines on loggers under "app"; the root logger is never touched."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

import msgspec

LogFormat = Literal["text", "json"]

ROOT = "app"
_access = logging.getLogger("app.access")


class AccessRecord(msgspec.Struct, frozen=True):
    """One ended HTTP request; `outcome` says why it ended, `seconds` how long it ran."""

    request_id: str
    client: str
    method: str
    path: str
    status: int
    outcome: str
    seconds: float


class _Line(msgspec.Struct, omit_defaults=True):
    """One JSON log line; `time` is ISO 8601 in UTC."""

    time: str
    level: str
    logger: str
    message: str
    request: AccessRecord | None = None
    traceback: str | None = None


class JsonFormatter(logging.Formatter):
    """One JSON object a line; an access line carries its request as an object."""

    def format(self, record: logging.LogRecord) -> str:
        """Encode one record."""
        line = _Line(
            time=datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            level=record.levelname.lower(),
            logger=record.name,
            message=record.getMessage(),
            request=getattr(record, "access", None),
            traceback=self.formatException(record.exc_info) if record.exc_info else None,
        )
        return msgspec.json.encode(line).decode()


def configure_logging(format: LogFormat = "text", level: int = logging.INFO) -> None:
    """Print the "app" loggers to stderr in `format`; a second call replaces what the first one set up.

    For our own processes: a host that mounts us has a set-up of its own.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False


def configure_logging_once() -> None:
    """As configure_logging(), unless our loggers already reach a handler: whoever set that up knows better."""
    if not logging.getLogger(ROOT).hasHandlers():
        configure_logging()


def log_access(record: AccessRecord) -> None:
    """One line for one ended request; silent health probes that worked would drown the rest, so they are DEBUG."""
    level = logging.DEBUG if record.status == 200 and record.path.endswith(_PROBES) else logging.INFO
    if _access.isEnabledFor(level):
        _access.log(
            level,
            '%s "%s %s" %d %s %.3f s id=%s',
            record.client,
            record.method,
            quote(record.path),
            record.status,
            record.outcome,
            record.seconds,
            record.request_id,
            extra={"access": record},
        )


_PROBES = ("/health", "/livez", "/readyz", "/ping")
