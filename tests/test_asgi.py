"""`create_app`: one name, a factory and an ASGI application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import app
from app.asgi import AppFactory, failure_message, granian_target
from app.cluster.rundir import StartupError
from app.factory import OmniApp
from app.settings.problems import ConfigError
from app.settings.resolve import resolve
from tests.servers import ROOT


@pytest.fixture
def stub_model(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    monkeypatch.setenv("OMNI_MODEL", "stub")


def test_import_is_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import app\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before} - {'app', '__mp_main__'}\n"
        "print(sorted(names - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("stub_model")
def test_factory_takes_nothing_settings_or_flags() -> None:
    for made in (app.create_app(), app.create_app(resolve({"model": "stub"})), app.create_app(model="stub")):
        assert isinstance(made, OmniApp)
        assert made.settings.model == "stub"


@pytest.mark.usefixtures("stub_model")
def test_factory_refuses_settings_together_with_flags() -> None:
    with pytest.raises(TypeError):
        app.create_app(resolve({"model": "stub"}), port=1)


@pytest.mark.usefixtures("runtime_dir")
def test_factory_raises_what_is_wrong_with_the_flags() -> None:
    with pytest.raises(ConfigError, match="nope"):
        app.create_app(model="stub", nope=1)


def test_granian_target_is_create_app_in_any_process() -> None:
    assert granian_target("app:create_app") is app.create_app
    assert app.create_app.__name__ == "create_app"


class Lifespan:
    """The server's side of one lifespan."""

    def __init__(self) -> None:
        self.received = 0
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        return {"type": ("lifespan.startup", "lifespan.shutdown")[self.received - 1]}

    async def send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)


async def test_failed_build_is_reported_and_not_raised(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    monkeypatch.delenv("OMNI_MODEL", raising=False)
    server = Lifespan()
    await AppFactory()({"type": "lifespan"}, server.receive, server.send)
    assert server.received == 1
    (event,) = server.sent
    assert event["type"] == "lifespan.startup.failed"
    assert event["message"].startswith("startup failed: no model: set OMNI_MODEL")


@pytest.mark.usefixtures("stub_model")
async def test_application_serves_between_startup_and_shutdown() -> None:
    factory, server = AppFactory(), Lifespan()
    answers: list[httpx.Response] = []

    async def receive() -> dict[str, Any]:
        if server.received == 1:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(factory), base_url="http://test") as client:
                answers.append(await client.get("/readyz"))
        return await server.receive()

    await factory({"type": "lifespan"}, receive, server.send)
    assert [event["type"] for event in server.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert [answer.status_code for answer in answers] == [200]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StartupError("stage 0 is broken"), "startup failed: stage 0 is broken"),
        (ConfigError(["one", "two"]), "startup failed: one\ntwo"),
        (KeyError("x"), "startup failed: KeyError: 'x'"),
        (ExceptionGroup("g", [StartupError("inner")]), "startup failed: inner"),
    ],
)
def test_failure_message_is_for_the_reader(error: Exception, message: str) -> None:
    assert failure_message(error) == message
