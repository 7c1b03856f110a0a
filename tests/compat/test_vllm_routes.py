"""The routes of vLLM's surface on the real vLLM, as the openai and anthropic packages see them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest

from tests.compat.vllm_server import KEY, running
from tests.servers import Server, wait_for
from tests.tiny import tiny_lora

CHAT: Any = [{"role": "user", "content": "hello"}]
LONG = {"input": "hello", "max_output_tokens": 900, "background": True, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, httpx.Client]]:
    """A server with the tiny model and LoRA, and a client of it."""
    with running(tmp_path_factory.mktemp("deploy"), enable_lora=True, max_lora_rank=8) as both:
        yield both


@pytest.fixture
def client(served: tuple[Server, httpx.Client]) -> httpx.Client:
    return served[1]


@pytest.fixture
def sdk(client: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{client.base_url}/v1", max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def claude(client: httpx.Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key=KEY, base_url=str(client.base_url), max_retries=0) as sdk:
        yield sdk


# ------------------------------------------------------------------------------------------------ responses


def test_a_response_is_the_same_whole_and_streamed(sdk: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 8}
    whole = sdk.responses.create(**asked)
    events = list(sdk.responses.create(**asked, stream=True))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    streamed = events[-1].response
    assert (
        streamed.output_text
        == whole.output_text
        == "".join(event.delta for event in events if event.type == "response.output_text.delta")
    )
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 8


def test_a_response_is_kept_and_continued(sdk: openai.OpenAI, client: httpx.Client) -> None:
    first = sdk.responses.create(model="tiny", input="hello", max_output_tokens=4)
    assert sdk.responses.retrieve(first.id).output == first.output
    for _ in range(4):  # each on a connection of its own, so that both API workers are asked
        headers = {"Authorization": f"Bearer {KEY}"}
        assert httpx.get(f"{client.base_url}/v1/responses/{first.id}", headers=headers).json()["id"] == first.id
    alone = sdk.responses.create(model="tiny", input="more", max_output_tokens=4)
    both = sdk.responses.create(model="tiny", input="more", max_output_tokens=4, previous_response_id=first.id)
    assert both.usage is not None
    assert alone.usage is not None
    assert both.usage.input_tokens > alone.usage.input_tokens


def test_a_response_that_is_not_stored_is_gone(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model="tiny", input="hello", max_output_tokens=1, store=False)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)


def test_a_response_in_the_background_is_cancelled(sdk: openai.OpenAI, client: httpx.Client) -> None:
    response = sdk.responses.create(model="tiny", **LONG)
    assert response.status == "queued"
    assert sdk.responses.cancel(response.id).status == "cancelled"
    wait_for(lambda: client.get("/load").json() == {"server_load": 0}, 10, "the engine to stop")
    assert sdk.responses.retrieve(response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        sdk.responses.cancel(response.id)


def test_a_response_in_the_background_outlives_its_request(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model="tiny", input="hello", max_output_tokens=8, background=True)
    wait_for(lambda: sdk.responses.retrieve(response.id).status not in ("queued", "in_progress"), 20, "the response")
    assert sdk.responses.retrieve(response.id).status in ("completed", "incomplete")


@pytest.mark.parametrize("response_id", ["nope", "resp_" + "0" * 40, "resp_" + "x" * 40])
def test_an_unknown_response(client: httpx.Client, response_id: str) -> None:
    answers = [
        client.get(f"/v1/responses/{response_id}"),
        client.post(f"/v1/responses/{response_id}/cancel"),
        client.post("/v1/responses", json={"input": "x", "previous_response_id": response_id}),
    ]
    errors = [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]
    assert errors == [(404, "response_not_found")] * 3
    assert [answer.json()["error"]["param"] for answer in answers] == ["response_id"] * 2 + ["previous_response_id"]


@pytest.mark.parametrize("query", ["stream=maybe", "starting_after=x", "stream=true", "starting_after=-1"])
def test_a_wrong_query(client: httpx.Client, query: str) -> None:
    response_id = client.post("/v1/responses", json={"input": "x", "max_output_tokens": 1}).json()["id"]
    answer = client.get(f"/v1/responses/{response_id}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_a_client_that_leaves_stops_the_response(client: httpx.Client) -> None:
    body = {"input": "x", "max_output_tokens": 1000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        next(answer.iter_lines())
    left = time.monotonic()
    wait_for(lambda: client.get("/load").json() == {"server_load": 0}, 5, "the engine to stop")
    assert time.monotonic() - left < 4, "a second, the period of /load, and the slack of a busy machine"


# ------------------------------------------------------------------------------------------------ messages


def test_a_message_is_the_same_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 8, "messages": CHAT, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 8
    assert streamed.stop_reason == whole.stop_reason == "max_tokens"
    counted = claude.messages.count_tokens(model="tiny", messages=CHAT)
    assert counted.input_tokens == whole.usage.input_tokens


def test_anthropic_clients_read_our_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        claude.messages.create(model="nope", max_tokens=1, messages=CHAT)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model="tiny", max_tokens=0, messages=CHAT)


# ------------------------------------------------------------------------------------------------ the rest


def test_tokens_there_and_back(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"prompt": "hello"}).json()
    assert tokens["count"] == 5
    assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "hello"}


def test_a_batch_has_a_choice_for_each_conversation(client: httpx.Client) -> None:
    body = {"messages": [CHAT, CHAT, CHAT], "max_tokens": 4, "temperature": 0}
    choices = client.post("/v1/chat/completions/batch", json=body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 1


def test_generative_scoring(client: httpx.Client) -> None:
    body = {"query": "is this a city? ", "items": ["Paris", "blue"], "label_token_ids": [1, 2]}
    answer = client.post("/generative_scoring", json=body)
    assert answer.status_code == 200
    assert [item["index"] for item in answer.json()["data"]] == [0, 1]


@pytest.mark.parametrize(
    ("body", "object_"), [({"messages": CHAT}, "chat.completion"), ({"prompt": "x"}, "text_completion")]
)
def test_invocations_dispatch_by_body(client: httpx.Client, body: dict[str, Any], object_: str) -> None:
    assert client.post("/invocations", json=body | {"max_tokens": 1}).json()["object"] == object_


def test_an_invocation_that_fits_nothing(client: httpx.Client) -> None:
    answer = client.post("/invocations", json={"input": "x"})
    assert answer.status_code == 400
    assert "messages; prompt" in answer.json()["error"]["message"]


# ------------------------------------------------------------------------------------------------ adapters


def said(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": "hello", "max_tokens": 8, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def models(client: httpx.Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def test_an_adapter_is_loaded_replayed_and_unloaded(served: tuple[Server, httpx.Client]) -> None:
    server, client = served
    load = {"lora_name": "ad", "lora_path": str(tiny_lora())}
    assert client.post("/v1/load_lora_adapter", json=load).status_code == 200
    adapted = said(client, "ad")
    assert adapted != said(client, "tiny")
    assert models(client) == ["tiny", "ad"]
    again = client.post("/v1/load_lora_adapter", json=load)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
    assert client.post("/v1/load_lora_adapter", json=load | {"load_inplace": True}).status_code == 200
    restart_replica(server)
    assert said(client, "ad") == adapted
    assert client.post("/v1/unload_lora_adapter", json={"lora_name": "ad"}).status_code == 200
    assert models(client) == ["tiny"]
    gone = client.post("/v1/completions", json={"model": "ad", "prompt": "x"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")


def restart_replica(server: Server) -> None:
    """Kill the replica (its EngineCore, a fork of it, goes with it) and wait for its successor."""
    family = server.replicas
    (replica,) = (pid for pid in family if psutil.Process(pid).ppid() not in family)
    os.kill(replica, signal.SIGKILL)
    wait_for(lambda: server.answers("/readyz", 503), 10, "the loss to be noticed")
    server.wait_ready(90)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"lora_name": "x", "lora_path": "/nope"}, 400, "lora_path"),
        ({"lora_name": "x", "lora_path": "/tmp"}, 400, "lora_path"),
        ({"lora_name": "x", "lora_path": "some/hub-id"}, 400, "lora_path"),
        ({"lora_name": "tiny", "lora_path": "/tmp"}, 400, "lora_name"),
    ],
)
def test_an_adapter_that_cannot_be_loaded(client: httpx.Client, body: dict[str, str], status: int, param: str) -> None:
    answer = client.post("/v1/load_lora_adapter", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert models(client) == ["tiny"]
    assert client.post("/v1/completions", json={"model": "x", "prompt": "x"}).status_code == 404


def test_an_unknown_adapter_cannot_be_unloaded(client: httpx.Client) -> None:
    answer = client.post("/v1/unload_lora_adapter", json={"lora_name": "nope"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "lora_name")
