"""Stored responses: which engine is asked, and what is known to be unknown before any is asked."""

from __future__ import annotations

import json

import httpx
import pytest

from app.cluster.messages import Document, Done, Named
from app.protocol.responses import instance_of, new_id
from tests.routes.serving import HELD, ScriptedOrchestrator, Served

RESPONSE = new_id(HELD, "f" * 32)


@pytest.fixture
def served() -> Served:
    return Served(ScriptedOrchestrator([[Document(b'{"object":"response"}'), Done()]]))


def test_an_id_names_its_engine() -> None:
    assert instance_of(RESPONSE) == HELD


async def test_the_holder_is_asked(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.get(f"/v1/responses/{RESPONSE}")
    assert answer.json() == {"object": "response"}
    kind, _, body, _ = served.orchestrator.submitted[0]
    assert (kind, json.loads(body)["response_id"]) == ("retrieve_response", RESPONSE)
    assert served.orchestrator.asked == ("responses", HELD)


async def test_the_events_of_a_response_that_runs(client: httpx.AsyncClient, served: Served) -> None:
    served.orchestrator.script = [[Named("response.created", b"{}"), Done()]]
    answer = await client.get(f"/v1/responses/{RESPONSE}?stream=true&starting_after=3")
    assert answer.text == "event: response.created\ndata: {}\n\n"
    _, _, body, _ = served.orchestrator.submitted[0]
    assert json.loads(body) == {"response_id": RESPONSE, "stream": True, "starting_after": 3}


async def test_the_holder_cancels(client: httpx.AsyncClient, served: Served) -> None:
    assert (await client.post(f"/v1/responses/{RESPONSE}/cancel")).status_code == 200
    kind, _, body, _ = served.orchestrator.submitted[0]
    assert (kind, json.loads(body)) == ("cancel_response", {"response_id": RESPONSE})
    assert served.orchestrator.asked == ("responses", HELD)


async def test_a_response_is_continued_where_it_is_held(client: httpx.AsyncClient, served: Served) -> None:
    await client.post("/v1/responses", json={"input": "x", "previous_response_id": RESPONSE})
    assert served.orchestrator.asked[1] == HELD
    await client.post("/v1/responses", json={"input": "x"})
    assert served.orchestrator.asked[1] == ""


@pytest.mark.parametrize("response_id", ["x", new_id("00000000", "f" * 32), RESPONSE + "0", RESPONSE.upper()])
async def test_nobody_is_asked_for_what_nobody_holds(
    client: httpx.AsyncClient, served: Served, response_id: str
) -> None:
    answers = [
        await client.get(f"/v1/responses/{response_id}"),
        await client.post(f"/v1/responses/{response_id}/cancel"),
        await client.post("/v1/responses", json={"input": "x", "previous_response_id": response_id}),
    ]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
        (404, "response_not_found")
    ] * 3
    assert served.orchestrator.submitted == []
