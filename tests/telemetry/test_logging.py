from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from app.settings.schema import LogConfig
from app.telemetry.logging import AccessRecord, configure_logging, configure_logging_once, log_access

RECORD = AccessRecord("r-1", "192.0.2.1", "POST", "/v1/completions", 200, "done", 0.25)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    logger = logging.getLogger("app")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log_access(RECORD)
    assert capsys.readouterr().err.endswith(
        'INFO app.access: 192.0.2.1 "POST /v1/completions" 200 done 0.250 s id=r-1\n'
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogConfig(format="json"))
    log_access(RECORD)
    line = json.loads(capsys.readouterr().err)
    assert line["request"] == {
        "request_id": "r-1",
        "client": "192.0.2.1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "outcome": "done",
        "seconds": 0.25,
    }
    assert (line["level"], line["logger"]) == ("info", "app.access")
    assert line["time"].endswith("+00:00")


def test_a_traceback_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogConfig(format="json"))
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("app.x").exception("it failed")
    [line] = capsys.readouterr().err.splitlines()
    assert "ValueError: why" in json.loads(line)["traceback"]


def test_a_second_call_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogConfig(format="json"))
    configure_logging(LogConfig(format="text"))
    log_access(RECORD)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_root_logger_is_left_alone() -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    configure_logging(LogConfig(format="json"))
    assert (list(root.handlers), root.level) == before


def test_control_characters_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log_access(AccessRecord("r", "192.0.2.1", "GET", "/a\n192.0.2.9 \u2028x\x1b[31m", 404, "refused", 0.0))
    [line] = capsys.readouterr().err.splitlines()
    assert "\x1b" not in line


def test_a_set_up_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("app")
    monkeypatch.setattr(logger, "propagate", False)
    theirs = logging.NullHandler()
    logger.handlers = [theirs]
    configure_logging_once()
    assert logger.handlers == [theirs]
    logger.handlers = []
    configure_logging_once()
    assert [type(handler) for handler in logger.handlers] == [logging.StreamHandler]
