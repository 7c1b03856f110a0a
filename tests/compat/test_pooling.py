"""Models that pool, on the real vLLM: what they answer, and the table of what they refuse."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.compat.negative import LIMIT, Case, Route, cases, problem, send
from tests.compat.vllm_server import KEY, vllm_server

OPTIONS = {"truncate_prompt_tokens": "integer", "priority": "integer", "use_activation": "flag"}

ROUTES = [
    Route(
        "/v1/embeddings",
        {"input": "hi"},
        {"input": "texts"},
        OPTIONS | {"encoding_format": "choice", "dimensions": "count"},
        ("input",),
    ),
    Route(
        "/v2/embed",
        {"texts": ["hi"]},
        {"texts": "texts"},
        {"embedding_types": "list", "truncate": "choice"},
        ("texts",),
    ),
    Route("/pooling", {"input": "hi"}, {"input": "texts"}, OPTIONS | {"task": "choice"}, ("input",)),
    Route(
        "/score",
        {"queries": "a", "documents": ["b"]},
        {"queries": "texts", "documents": "texts"},
        OPTIONS,
        ("queries",),
    ),
    Route("/v1/score", {"queries": "a", "documents": ["b"]}, {"queries": "texts"}, {}, ("queries",)),
    Route(
        "/rerank",
        {"query": "a", "documents": ["b"]},
        {"query": "text", "documents": "texts"},
        OPTIONS | {"top_n": "limit"},
        ("documents",),
    ),
    Route("/v1/rerank", {"query": "a", "documents": ["b"]}, {"documents": "texts"}, {}, ("documents",)),
    Route("/v2/rerank", {"query": "a", "documents": ["b"]}, {"documents": "texts"}, {}, ("documents",)),
    Route("/tokenize", {"prompt": "hi"}, {"prompt": "text"}),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server whose model embeds."""
    env = {"OMNI_MAX_BODY_BYTES": str(LIMIT)}
    with vllm_server(tmp_path_factory.mktemp("deploy"), env, runner="pooling", convert="embed") as client:
        yield client


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.path} {case.name}") for route in ROUTES for case in cases(route)]
)
def test_refused(client: httpx.Client, case: Case) -> None:
    assert problem(case, send(client, case)) is None


def test_the_openai_package_embeds(client: httpx.Client) -> None:
    with openai.OpenAI(api_key=KEY, base_url=f"{client.base_url}/v1", max_retries=0) as sdk:
        packed = sdk.embeddings.create(model="tiny", input=["hello", "you"])  # base64 on the wire
        plain = sdk.embeddings.create(model="tiny", input=["hello", "you"], encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1]
    assert packed.usage.prompt_tokens == plain.usage.prompt_tokens == 8
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-5)
        assert sum(x * x for x in one.embedding) == pytest.approx(1, rel=1e-4)


def test_scores_are_those_of_the_embeddings(client: httpx.Client) -> None:
    texts = {"queries": "hello", "documents": ["hello", "quite another"]}
    same, other = (item["score"] for item in client.post("/score", json=texts).json()["data"])
    assert same == pytest.approx(1, rel=1e-4)
    assert other < same
    assert client.post("/v1/score", json=texts).json()["data"][1]["score"] == pytest.approx(other)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_orders(client: httpx.Client, path: str) -> None:
    body = {"query": "hello", "documents": ["quite another", "hello"], "top_n": 1}
    (best,) = client.post(path, json=body).json()["results"]
    assert (best["index"], best["document"]["text"]) == (1, "hello")


def test_cohere_and_pooling_agree_with_embeddings(client: httpx.Client) -> None:
    expected = client.post("/v1/embeddings", json={"input": "hello"}).json()["data"][0]["embedding"]
    cohere = client.post("/v2/embed", json={"texts": ["hello"], "embedding_types": ["float"]}).json()
    pooled = client.post("/pooling", json={"input": "hello"}).json()
    assert cohere["embeddings"]["float"][0] == pytest.approx(expected, rel=1e-5)
    assert pooled["data"][0]["data"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("body", "object_"), [({"input": "x"}, "embedding"), ({"text_1": "a", "text_2": "b"}, "score")]
)
def test_invocations_dispatch_by_body(client: httpx.Client, body: dict[str, str], object_: str) -> None:
    assert client.post("/invocations", json=body).json()["data"][0]["object"] == object_


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
        ("/classify", {"input": "x"}),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nope"}),
    ],
)
def test_what_the_model_cannot_do_is_404(client: httpx.Client, path: str, body: dict[str, object]) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_task")


def test_the_model_says_what_it_does(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert {"embeddings", "score", "rerank", "pooling", "tokenize"} <= set(model["tasks"])
    assert model["output_modalities"] == []
