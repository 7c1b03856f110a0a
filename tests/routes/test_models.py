from __future__ import annotations

import httpx
import pytest

from tests.routes.drawing import drawing


async def test_the_list(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["smol", "HuggingFaceTB/SmolLM2"]
    assert body["data"][0] == {
        "id": "smol",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "omni-app",
        "root": "HuggingFaceTB/SmolLM2",
        "parent": None,
        "card": None,
        "max_model_len": 2048,
        "tasks": ["chat", "completion"],
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
    }


@pytest.mark.parametrize("path", ["smol", "HuggingFaceTB/SmolLM2", "HuggingFaceTB%2FSmolLM2"])
async def test_one_model(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(f"/v1/models/{path}")
    listed = (await client.get("/v1/models")).json()["data"]
    assert answer.status_code == 200
    assert answer.json() in listed


@pytest.mark.parametrize("path", ["nope", "HuggingFaceTB", "HuggingFaceTB/SmolLM2/x", "a/b/c"])
async def test_a_model_that_is_not_served(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(f"/v1/models/{path}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert path in error["message"]


async def test_what_the_engine_tells_of_its_parameters() -> None:
    transport = httpx.ASGITransport(drawing().app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        model = (await client.get("/v1/models/smol")).json()
    assert model["card"] == {"class": "Tiny", "parameters": {"num_inference_steps": 5, "guidance_scale": 7.5}}
