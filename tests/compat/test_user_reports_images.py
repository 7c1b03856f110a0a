"""What users of such servers report of pictures, on the routes. Numbers are those of the report that a test plays.

What only a pipeline can judge is played on one in test_pictures.py and tests/engines/diffusion.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cluster.messages import Done, Usage
from tests.routes.drawing import asked, drawing, picture
from tests.routes.serving import Served

GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"
FILE = ("P1.png", b"\x89PNG", "image/png")


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return drawing([[picture(0), picture(1), picture(2)], [Usage(1, 3), Done()]], directory=tmp_path)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


def refused(answer: httpx.Response, param: str) -> bool:
    error = answer.json()["error"]
    return (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


@pytest.mark.parametrize("value", [-1, "abc", 1e9, True, 0, 201])
async def test_069_illegal_parameters_are_the_clients_mistake(client: httpx.AsyncClient, value: Any) -> None:
    answer = await client.post(GENERATIONS, json={"prompt": "x", "num_inference_steps": value})
    assert refused(answer, "num_inference_steps")


async def test_069_null_is_the_default(client: httpx.AsyncClient, served: Served) -> None:
    """OpenAI's clients send null for what they leave open."""
    fields = {"num_inference_steps": None, "n": None, "size": None, "quality": None, "lora": None, "stream": None}
    assert (await client.post(GENERATIONS, json={"prompt": "x", **fields})).status_code == 200
    assert asked(served).num_inference_steps is None


async def test_074_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "model": "nope"}
    answers = [
        await client.post(GENERATIONS, json={"prompt": "x", "model": "nope"}),
        await client.post(EDITS, data={"prompt": "x", "model": "nope"}, files={"image": FILE}),
        await client.post("/v1/chat/completions", json=chat),
    ]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "'smol'" in error["message"]


async def test_077_further_parameters_arrive(client: httpx.AsyncClient, served: Served) -> None:
    await client.post(GENERATIONS, json={"prompt": "x", "extra_params": {"num_step": 7}})
    assert asked(served).extra == {"num_step": 7}
    await client.post(EDITS, data={"prompt": "x", "extra_params": '{"num_step": 7}'}, files={"image": FILE})
    assert asked(served).extra == {"num_step": 7}


async def test_093_n_holds_for_edits_too(client: httpx.AsyncClient, served: Served) -> None:
    for answer in (
        await client.post(GENERATIONS, json={"prompt": "x", "n": 3}),
        await client.post(EDITS, data={"prompt": "x", "n": "3"}, files={"image": FILE}),
    ):
        assert asked(served).n == 3
        assert [item["seed"] for item in answer.json()["data"]] == [7, 8, 9]
    for n in ("0", "11", "x"):
        assert refused(await client.post(EDITS, data={"prompt": "x", "n": n}, files={"image": FILE}), "n")


async def test_095_097_response_format_is_the_transport(client: httpx.AsyncClient, served: Served) -> None:
    b64 = await client.post(GENERATIONS, json={"prompt": "x", "response_format": "b64_json"})
    url = await client.post(GENERATIONS, json={"prompt": "x", "response_format": "url"})
    assert "b64_json" in b64.json()["data"][0]
    assert (await client.get(url.json()["data"][0]["url"])).status_code == 200
    for value in ("png", "wav", {"type": "json_object"}):
        answer = await client.post(GENERATIONS, json={"prompt": "x", "response_format": value})
        assert refused(answer, "response_format")
    await client.post(GENERATIONS, json={"prompt": "x", "output_format": "webp"})
    assert asked(served).format == "webp"


async def test_098_a_mask_reaches_who_can_judge_it(client: httpx.AsyncClient, served: Served) -> None:
    for name in ("mask", "mask_image"):
        await client.post(EDITS, data={"prompt": "x"}, files={"image": FILE, name: ("m.png", b"m", "image/png")})
        mask = asked(served).mask
        assert mask is not None
        assert (mask.data, mask.param) == (b"m", name)


@pytest.mark.parametrize(("layers", "status"), [(1, 400), (2, 200), (10, 200), (11, 400)])
async def test_099_layers(client: httpx.AsyncClient, layers: int, status: int) -> None:
    body = {"prompt": "x", "layers": layers}
    form = {"prompt": "x", "layers": str(layers)}
    assert (await client.post(GENERATIONS, json=body)).status_code == status
    assert (await client.post(EDITS, data=form, files={"image": FILE})).status_code == status


async def test_101_no_size_is_the_models_own(client: httpx.AsyncClient, served: Served) -> None:
    for size in ({}, {"size": "auto"}):
        await client.post(GENERATIONS, json={"prompt": "x", **size})
        assert (asked(served).width, asked(served).height) == (0, 0)


async def test_147_json_in_a_form_field(client: httpx.AsyncClient, served: Served) -> None:
    await client.post(EDITS, data={"prompt": "x", "lora": '{"name": "ink"}'}, files={"image": FILE})
    assert asked(served).lora[0].name == "ink"
    for text in ("{", "[1", "ink", '{"name": "a"} x'):
        answer = await client.post(EDITS, data={"prompt": "x", "lora": text}, files={"image": FILE})
        assert refused(answer, "lora")
