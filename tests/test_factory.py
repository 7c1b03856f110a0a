"""One application of a host: its life, its engine, a host that forgets the lifespan."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.cluster.rundir import RunDir, StartupError
from app.factory import OmniApp, build

BROKEN = {"model": "stub", "stage_overrides": {"0": {"engine_args": {"load_error": "weights are missing"}}}}

pytestmark = pytest.mark.usefixtures("runtime_dir")


def client_of(app: OmniApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=30)


async def test_lifespan_can_be_entered_again() -> None:
    app = build(model="stub")
    for _ in range(2):
        async with app.lifespan(), client_of(app) as client:
            assert (await client.get("/readyz")).status_code == 200


async def test_applications_of_a_process_have_masters_of_their_own() -> None:
    one, two = build(model="stub"), build(model="stub")
    async with one.lifespan(), two.lifespan():
        states = [RunDir.locate(app.mount).read_state() for app in (one, two)]
        assert [state.phase for state in states] == ["ready", "ready"]
        assert states[0].pid != states[1].pid


async def test_failed_load_names_the_stage_and_stays_failed() -> None:
    app = build(**BROKEN)
    for _ in range(2):
        with pytest.raises(StartupError, match=r"(?s)^stage 0 \(stub/0.*weights are missing"):
            async with app.lifespan():
                pytest.fail("it must not start")


async def test_exception_of_the_host_passes_the_lifespan_unchanged() -> None:
    app, own = build(model="stub"), LookupError("of the host")
    with pytest.raises(LookupError) as raised:
        async with app.lifespan():
            raise own
    assert raised.value is own


async def test_the_end_of_the_lifespan_ends_what_runs() -> None:
    app = build(model="stub")
    async with app.lifespan():
        ends: list[asyncio.Event] = [app.state.stopping, app.state.draining]
        assert not any(event.is_set() for event in ends)
    assert all(event.is_set() for event in ends)


async def test_first_request_boots_an_application_without_lifespan(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(build(model="stub")) as client:
        answers = await asyncio.gather(*(client.get("/v1/models") for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert caplog.text.count("did not run this application's lifespan") == 1


async def test_probes_do_not_wait_for_a_late_boot() -> None:
    slow = build(model="stub", stage_overrides={"0": {"engine_args": {"load_s": 2}}})
    async with client_of(slow) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


async def test_failed_late_boot_is_a_503_with_the_cause() -> None:
    async with client_of(build(**BROKEN)) as client:
        for _ in range(2):
            answer = await client.get("/v1/models")
            assert answer.status_code == 503
            error = answer.json()["error"]
            assert error["code"] == "startup_failed"
            assert "weights are missing" in error["message"]


async def test_failed_late_boot_closes_a_websocket() -> None:
    app = build(**BROKEN)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope: Any = {
        "type": "websocket",
        "path": "/v1/realtime",
        "raw_path": b"/v1/realtime",
        "root_path": "",
        "headers": [],
    }
    await app(scope, receive, send)
    assert [event["type"] for event in sent] == ["websocket.close"]
    assert sent[0]["code"] == 1013


async def test_body_limit_is_that_of_the_settings() -> None:
    app = build(model="stub", max_body_bytes=2048)
    async with app.lifespan(), client_of(app) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "x" * 4096})
        assert answer.status_code == 413
