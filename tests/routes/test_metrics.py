"""GET /metrics of real servers: two API workers, replicas of the stub, processes that die or stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.routes.metrics import REPLICA_LIMIT_S
from app.telemetry import families as f
from app.telemetry.store import read_all
from tests.routes.serving import Served
from tests.servers import GRANIAN, ROOT, Server, start_server, wait_for

STUB = {"OMNI_MODEL": "stub"}
KEY = {"authorization": "Bearer sesame"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Two workers and two replicas; an API worker that dies is replaced."""
    env = {**STUB, "OMNI_API_KEY": "sesame", "OMNI_STAGE_OVERRIDES": '{"0": {"num_replicas": 2}}'}
    with start_server([*GRANIAN, "--workers", "2", "--respawn-failed-workers"], env) as running:
        wait_for(lambda: running.wait_ready() and len(running.workers) == 2, 30, "two workers")
        yield running


def scrape(server: Server) -> Samples:
    """One scrape over a connection of its own, which either worker may get."""
    answer = httpx.get(f"{server.url}/metrics", headers=KEY, timeout=REPLICA_LIMIT_S + 5)
    assert answer.status_code == 200
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families)
    return {(x.name, frozenset(x.labels.items())): x.value for family in families for x in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all samples that have these labels."""
    wanted = labels.items()
    return sum(value for (at, have), value in samples.items() if at == name and wanted <= have)


def chat(server: Server, words: str = "one two three", **stub: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": words}], "stream": True, "stub": {"token_s": 0.005, **stub}}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=KEY, timeout=20)


@asynccontextmanager
async def streams(server: Server, count: int) -> AsyncIterator[None]:
    """So many endless answers that have begun, each over a connection of its own; all are left at the end."""
    body = {"messages": [], "stream": True, "stub": {"tokens": 100000, "token_s": 0.02}}
    clients = [httpx.AsyncClient(timeout=20, headers=KEY) for _ in range(count)]
    answers = []
    try:
        for client in clients:
            request = client.build_request("POST", f"{server.url}/v1/chat/completions", json=body)
            answers.append((await client.send(request, stream=True)).aiter_raw())
            await anext(answers[-1])
        yield
    finally:
        for client in clients:
            await client.aclose()


async def until(server: Server, name: str, expected: float, **labels: str) -> None:
    """Wait until a scrape says so."""
    await asyncio.to_thread(
        wait_for, lambda: value(scrape(server), name, **labels) == expected, 20, f"{name}{labels} to be {expected}"
    )


def test_workers_add_up_whichever_is_asked(server: Server) -> None:
    before = scrape(server)
    for _ in range(24):
        assert chat(server).status_code == 200
    after = [scrape(server) for _ in range(8)]
    for name, growth in (
        (f.REQUESTS_ENDED.name, 24),
        (f.GENERATION_TOKENS.name, 72),
        (f"{f.END_TO_END.name}_count", 24),
        (f"{f.TIME_TO_FIRST_TOKEN.name}_count", 24),
    ):
        assert {value(samples, name) - value(before, name) for samples in after} == {growth}, name
    # Tokens that arrive together with the first one have no interval: 48 only if this machine keeps up.
    [intervals] = {value(samples, f"{f.INTER_TOKEN.name}_count") for samples in after}
    assert 0 < intervals - value(before, f"{f.INTER_TOKEN.name}_count") <= 48
    [directory] = (server.runtime / f"omni-{os.getuid()}").iterdir()
    busy = {path.name for path in directory.glob("metrics-*")}
    assert busy == {"metrics-0", "metrics-1"}
    assert sum(b'"/v1/chat/completions"' in key and b"requests_total" in key for _, key, _ in read_all(directory)) == 2


def test_counters_never_go_back(server: Server) -> None:
    seen: Samples = {}
    for _ in range(6):
        chat(server)
        now = scrape(server)
        for (name, labels), count in seen.items():
            assert not name.endswith("_total") or now[name, labels] >= count, name
        seen = now


@pytest.mark.parametrize(
    ("reason", "stub"),
    [("failed", {"fail_after": 1}), ("rejected", {"refuse": "no"}), ("done", {"tokens": 0})],
)
async def test_reasons_of_ends(server: Server, reason: str, stub: dict[str, Any]) -> None:
    before = value(scrape(server), f.REQUESTS_ENDED.name, reason=reason)
    await asyncio.to_thread(chat, server, **stub)
    await until(server, f.REQUESTS_ENDED.name, before + 1, model="stub", reason=reason)


async def test_clients_that_leave(server: Server) -> None:
    before = scrape(server)
    async with streams(server, 3):
        await until(server, f.REQUESTS_RUNNING.name, 3, model="stub")
        await until(server, f.REPLICA_RUNNING.name, 3, stage="0")
    await until(server, f.REQUESTS_RUNNING.name, 0)
    for name in (f.REQUESTS_ENDED.name, f.REQUESTS_ABORTED.name):
        left = value(before, name, reason="client_disconnect") + 3
        await until(server, name, left, reason="client_disconnect")


async def test_a_killed_worker_leaves_counts_and_no_gauges(server: Server) -> None:
    before = scrape(server)
    async with streams(server, 8):
        await until(server, f.REQUESTS_RUNNING.name, 8)
        for pid in server.workers:
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: server.answers("/livez"), 30, "new workers")
        await until(server, f.REQUESTS_RUNNING.name, 0)
        await until(server, f.REQUESTS_ENDED.name, 8, reason="worker_lost")
    after = scrape(server)
    done = {"model": "stub", "reason": "done"}
    assert value(after, f.REQUESTS_ENDED.name, **done) == value(before, f.REQUESTS_ENDED.name, **done) > 0


def test_labels_are_bounded(server: Server) -> None:
    chat(server)
    before = {key for key in scrape(server) if key[0].startswith("omni_http")}
    with httpx.Client(base_url=server.url, headers=KEY, timeout=5) as client:
        for number in range(40):
            client.get(f"/random/{number}")
            client.get(f"/v1/models/m{number}")
            client.request(f"BREW{number}", "/v1/models")
            client.post("/v1/chat/completions", json={"model": f"m{number}", "messages": []})
    samples = scrape(server)
    new = {key for key in samples if key[0].startswith("omni_http")} - before
    routes = {dict(labels)["route"] for _, labels in new}
    assert routes <= {"unmatched", "/metrics", "/v1/models", "/v1/models/{model_id}", "/v1/chat/completions"}
    assert len({labels for name, labels in new if name == f.HTTP_REQUESTS.name}) <= 8
    assert {dict(labels)["model"] for _, labels in samples if "model" in dict(labels)} == {"stub"}


async def test_a_stopped_replica_does_not_hold_up_the_scrape(server: Server) -> None:
    await until(server, "stub:steps_total", value(scrape(server), "stub:steps_total"))
    victim = server.replicas[0]
    os.kill(victim, signal.SIGSTOP)
    try:
        samples = await asyncio.to_thread(scrape, server)
    finally:
        os.kill(victim, signal.SIGCONT)
    assert len([name for name, _ in samples if name == "stub:steps_total"]) == 1
    await until(server, f.SCRAPE_FAILURES.name, 1, stage="0")
    assert len([name for name, _ in scrape(server) if name == "stub:steps_total"]) == 2


async def test_restarts_are_counted(server: Server) -> None:
    before = value(scrape(server), f.REPLICA_RESTARTS.name)
    os.kill(server.replicas[0], signal.SIGKILL)
    await until(server, f.REPLICAS.name, 1, state="up")
    await until(server, f.REPLICA_RESTARTS.name, before + 1, stage="0")
    await until(server, f.REPLICAS.name, 2, state="up")


async def test_the_key_guards_it() -> None:
    app = Served(api_keys=["sesame"]).app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.get("/metrics")).status_code == 401


def test_a_host_keeps_prometheus_client_to_itself() -> None:
    check = "import sys, app.factory; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, timeout=60, check=True)
