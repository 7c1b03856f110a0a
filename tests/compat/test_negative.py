"""Every POST route of a model that generates refuses what is wrong, with the field at fault: real vLLM behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings

from tests.compat.fuzz import bodies, documented, example, fault
from tests.compat.negative import LIMIT, Case, Json, Route, cases, problem, send
from tests.compat.vllm_server import vllm_server

CHAT = [{"role": "user", "content": "hi"}]
SAMPLING = {
    "temperature": "number",
    "top_p": "number",
    "top_k": "integer",
    "seed": "integer",
    "frequency_penalty": "number",
    "presence_penalty": "number",
    "logit_bias": "object",
}

ROUTES = [
    Route(
        "/v1/chat/completions",
        {"messages": CHAT, "max_tokens": 1},
        {"messages": "list"},
        SAMPLING
        | {
            "max_tokens": "count",
            "max_completion_tokens": "count",
            "n": "count",
            "stream": "flag",
            "stream_options": "object",
            "tools": "list",
            "tool_choice": "choice",
            "response_format": "object",
            "logprobs": "flag",
            "top_logprobs": "count",
        },
        ("messages",),
    ),
    Route(
        "/v1/chat/completions/batch",
        {"messages": [CHAT], "max_tokens": 1},
        {"messages": "list"},
        SAMPLING | {"max_tokens": "count", "stream": "flag", "logprobs": "flag"},
        ("messages",),
    ),
    Route(
        "/v1/completions",
        {"prompt": "hi", "max_tokens": 1},
        {"prompt": "texts"},
        SAMPLING
        | {"max_tokens": "count", "n": "count", "stream": "flag", "stream_options": "object", "logprobs": "count"},
        ("prompt",),
    ),
    Route(
        "/v1/responses",
        {"input": "hi", "max_output_tokens": 1},
        {"input": "texts"},
        {
            "max_output_tokens": "count",
            "temperature": "number",
            "top_p": "number",
            "stream": "flag",
            "store": "flag",
            "background": "flag",
            "truncation": "choice",
            "tools": "list",
            "tool_choice": "choice",
            "reasoning": "object",
            "text": "object",
            "instructions": "text",
            "metadata": "object",
            "include": "list",
            "top_logprobs": "count",
        },
        ("input",),
    ),
    Route(
        "/v1/messages",
        {"model": "tiny", "messages": CHAT, "max_tokens": 1},
        {"messages": "list", "max_tokens": "count", "model": "text"},
        {
            "temperature": "number",
            "top_p": "number",
            "top_k": "integer",
            "stream": "flag",
            "stop_sequences": "list",
            "system": "texts",
            "tools": "list",
            "tool_choice": "object",
            "thinking": "object",
            "metadata": "object",
        },
        ("messages",),
    ),
    Route(
        "/v1/messages/count_tokens",
        {"model": "tiny", "messages": CHAT},
        {"messages": "list", "model": "text"},
        {"system": "texts", "tools": "list", "tool_choice": "object"},
        ("messages",),
    ),
    Route("/tokenize", {"prompt": "hi"}, {"prompt": "text"}, {"add_special_tokens": "flag"}),
    Route("/detokenize", {"tokens": [1]}, {"tokens": "tokens"}, {}),
    Route(
        "/generative_scoring",
        {"query": "a", "items": ["b"], "label_token_ids": [1, 2]},
        {"query": "texts", "items": "list", "label_token_ids": "tokens"},
        {"apply_softmax": "flag"},
        ("items", "label_token_ids"),
    ),
]

ADAPTERS = [
    Route(
        "/v1/load_lora_adapter",
        {"lora_name": "a", "lora_path": "/nope"},
        {"lora_name": "text", "lora_path": "text"},
        {"load_inplace": "flag", "is_3d_lora_weight": "flag"},
        ("lora_name", "lora_path"),
        strict=True,
    ),
    Route("/v1/unload_lora_adapter", {"lora_name": "a"}, {"lora_name": "text"}, {}, ("lora_name",), strict=True),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server with the tiny model, LoRA and an API key."""
    env = {"OMNI_MAX_BODY_BYTES": str(LIMIT)}
    with vllm_server(tmp_path_factory.mktemp("deploy"), env, enable_lora=True, max_lora_rank=8) as client:
        yield client


def all_cases(routes: list[Route]) -> list[Any]:
    return [pytest.param(case, id=f"{case.path} {case.name}") for route in routes for case in cases(route)]


@pytest.mark.parametrize("case", all_cases(ROUTES + ADAPTERS))
def test_refused(client: httpx.Client, case: Case) -> None:
    assert problem(case, send(client, case)) is None


FUZZED = [
    *(route.path for route in ROUTES + ADAPTERS),
    "/invocations",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/audio/speech",
    "/v1/audio/speech/batch",
    "/v1/audio/generate",
    "/v1/audio/voices",
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
]


@pytest.fixture(scope="module")
def operations(client: httpx.Client) -> dict[str, Json]:
    return documented(client.get("/openapi.json").json())


def test_every_post_route_is_fuzzed(operations: dict[str, Json]) -> None:
    """Those that take only a form are fuzzed in test_image_refusals.py and test_speech_refusals.py.

    Those that change the stages of the server are refused in test_sleep.py and tests/routes/test_cluster.py, those of
    videos in test_videos.py and tests/routes/test_videos.py.
    """
    forms = ["/v1/images/variations", "/v1/audio/transcriptions", "/v1/audio/translations"]
    stages = ["/v1/omni/scale", "/v1/omni/sleep", "/v1/omni/wakeup"]
    videos = ["/v1/videos", "/v1/videos/sync"]
    assert sorted(operations) == sorted(FUZZED + forms + stages + videos)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_the_documented_example_is_answered(client: httpx.Client, operations: dict[str, Json], route: Route) -> None:
    answer = client.post(route.path, json=example(operations[route.path]))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", FUZZED)
def test_no_body_is_a_fault(client: httpx.Client, operations: dict[str, Json], path: str) -> None:
    route = next((route for route in ROUTES + ADAPTERS if route.path == path), None)

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(bodies(operations[path], route))
    def check(body: Json) -> None:
        assert fault(client.post(path, json=body)) is None

    check()
