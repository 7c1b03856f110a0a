"""Applications mounted in hosts under real servers: prefixes, lifespans, one engine for each mount."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.servers import ROOT, Server, start_server, wait_for

STARLETTE = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from app import create_app

omni = create_app(model="stub")

@asynccontextmanager
async def lifespan(host):
    async with omni.lifespan():
        yield

host = Starlette(lifespan=lifespan)
host.mount("/a/omni", omni)
"""

FASTAPI = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from app import create_app

omni = create_app(model="stub")

@asynccontextmanager
async def lifespan(host):
    async with omni.lifespan():
        yield

host = FastAPI(lifespan=lifespan)
host.mount("/a/omni", omni)
"""

LITESTAR = """
from litestar import Litestar, asgi
from app import create_app

omni = create_app(model="stub")
host = Litestar([asgi("/a/omni", is_mount=True, copy_scope=True)(omni)], lifespan=[lambda _: omni.lifespan()])
"""

TWO_MOUNTS = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from app import create_app

one = create_app(model="stub", served_model_name=["one"])
two = create_app(model="stub", served_model_name=["two"])

@asynccontextmanager
async def lifespan(host):
    async with one.lifespan(), two.lifespan():
        yield

host = Starlette(lifespan=lifespan)
host.mount("/one", one)
host.mount("/two", two)
"""

FORGOTTEN = """
from starlette.applications import Starlette
from app import create_app

host = Starlette()
host.mount("/a/omni", create_app(model="stub"))
"""

BROKEN = STARLETTE.replace(
    'model="stub"', """model="stub", stage_overrides={"0": {"engine_args": {"load_error": "weights are missing"}}}"""
)

SERVERS = {
    "granian": ("granian", "--interface", "asgi", "host:host", "--workers", "2"),
    "uvicorn": ("uvicorn", "host:host"),
}


def host_env(tmp_path: Path, source: str) -> dict[str, str]:
    (tmp_path / "host.py").write_text(source)
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.parametrize("server_name", SERVERS)
@pytest.mark.parametrize("source", [STARLETTE, FASTAPI, LITESTAR], ids=["starlette", "fastapi", "litestar"])
def test_mounted_under_a_prefix(tmp_path: Path, source: str, server_name: str) -> None:
    with start_server(SERVERS[server_name], host_env(tmp_path, source), cwd=tmp_path) as server:
        wait_for(lambda: server.process.poll() is not None or server.answers("/a/omni/readyz"), 30, "the host")
        assert len(server.masters) == 1, server.output()
        check_prefix(server, "/a/omni")
        assert server.stop() in (0, -15)
        server.assert_nothing_left()


def check_prefix(server: Server, prefix: str) -> None:
    assert server.get(f"{prefix}/v1/models").json()["data"][0]["id"] == "stub"
    assert server.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": prefix}]
    page = server.get(f"{prefix}/docs").text
    links = re.findall(r'(?:src|href|url)(?:=|: )"([^"]+)"', page)
    assert links
    assert all(link.startswith(f"{prefix}/") for link in links)
    assert {server.get(link).status_code for link in links} == {200}
    answer = httpx.post(
        f"{server.url}{prefix}/v1/chat/completions",
        json={"model": "stub", "messages": [{"role": "user", "content": "one two"}]},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].split() == ["one", "two"]
    missing = server.get(f"{prefix}/nope")
    assert missing.status_code == 404
    assert f"{prefix}/nope" in missing.json()["error"]["message"] or "/nope" in missing.json()["error"]["message"]


def test_two_mounts_with_different_settings_share_nothing(tmp_path: Path) -> None:
    with start_server(SERVERS["granian"], host_env(tmp_path, TWO_MOUNTS), cwd=tmp_path) as server:
        wait_for(lambda: server.process.poll() is not None or server.answers("/two/readyz"), 30, "the host")
        assert len(server.masters) == 2, server.output()
        assert server.get("/one/v1/models").json()["data"][0]["id"] == "one"
        assert server.get("/two/v1/models").json()["data"][0]["id"] == "two"
        assert server.stop() == 0
        server.assert_nothing_left()


@pytest.mark.parametrize("server_name", SERVERS)
def test_forgotten_lifespan_is_made_up_for_with_a_warning(tmp_path: Path, server_name: str) -> None:
    with start_server(SERVERS[server_name], host_env(tmp_path, FORGOTTEN), cwd=tmp_path) as server:
        wait_for(lambda: server.process.poll() is not None or server.answers("/a/omni/livez"), 30, "the host")
        assert server.get("/a/omni/v1/models", timeout=30).status_code == 200
        assert "did not run this application's lifespan" in server.output()
        assert len(server.masters) == 1
        assert server.stop() in (0, -15)
        server.assert_nothing_left()


@pytest.mark.parametrize(("server_name", "code"), [("granian", 1), ("uvicorn", 3)])
def test_failed_load_fails_the_host(tmp_path: Path, server_name: str, code: int) -> None:
    with start_server(SERVERS[server_name], host_env(tmp_path, BROKEN), cwd=tmp_path) as server:
        assert server.wait(30) == code
        assert "weights are missing" in server.output()
        server.assert_nothing_left()


@pytest.mark.parametrize("strips", [True, False], ids=["strips", "keeps"])
@pytest.mark.parametrize(
    ("line", "env"),
    [
        (("granian", "--interface", "asgi", "app:create_app"), {"OMNI_ROOT_PATH": "/pre"}),
        (("granian", "--interface", "asgi", "app:create_app", "--url-path-prefix", "/pre"), {}),
        (("uvicorn", "app:create_app", "--factory"), {"OMNI_ROOT_PATH": "/pre"}),
    ],
    ids=["granian", "granian prefix", "uvicorn"],
)
def test_behind_a_proxy(line: tuple[str, ...], env: dict[str, str], strips: bool) -> None:
    """What a proxy that publishes us under /pre sends to the server, with the prefix taken off or not."""
    arrives = "" if strips else "/pre"
    with start_server(line, {"OMNI_MODEL": "stub", **env}) as server:
        wait_for(lambda: server.process.poll() is not None or server.answers(f"{arrives}/readyz"), 30, "the server")
        assert server.get(f"{arrives}/v1/models").status_code == 200, server.output()
        assert server.get(f"{arrives}/openapi.json").json()["servers"] == [{"url": "/pre"}]
        assert 'href="/pre/docs/assets/' in server.get(f"{arrives}/docs").text
