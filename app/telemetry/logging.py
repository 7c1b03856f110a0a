"""The server's own log: text or JSON lines on loggers under "app"; the root logger is never touched."""

from __future__ import annotations

import logging
import os
import sys
import time
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from app.settings.schema import LogConfig

ROOT = "app"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
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
            time=_timestamp(record.created),
            level=record.levelname.lower(),
            logger=record.name,
            message=record.getMessage(),
            request=getattr(record, "access", None),
            traceback=self.formatException(record.exc_info) if record.exc_info else None,
        )
        return msgspec.json.encode(line).decode()


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def configure_logging(log: LogConfig | None = None) -> None:
    """Print the "app" loggers to stderr as `log` says; a second call replaces what the first one set up.

    For our own processes: a host that mounts us has a set-up of its own.
    """
    log = log or LogConfig()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format == "json" else logging.Formatter(_TEXT))
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.setLevel("DEBUG" if log.level == "trace" else log.level.upper())
    logger.propagate = False


def configure_logging_once(log: LogConfig | None = None) -> None:
    """As configure_logging(), unless our loggers already reach a handler: whoever set that up knows better."""
    if not logging.getLogger(ROOT).hasHandlers():
        configure_logging(log)


def send_errors_to(path: str) -> None:
    """Make `path` the standard error of this process and of all that it starts from now on; "" changes nothing.

    For our own processes.

    Raises:
        OSError: it cannot be opened.
    """
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stderr.flush()
        os.dup2(descriptor, 2)
        os.close(descriptor)


def relayed(source: str, line: str, log: LogConfig) -> str:
    """A line that another process wrote, for our own log."""
    if log.format == "text":
        return f"[{source}] {line}"
    if line.startswith('{"time":'):
        return line
    return msgspec.json.encode(_Line(_timestamp(time.time()), "info", source, line)).decode()


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
