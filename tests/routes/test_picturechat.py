"""Chats with a model that draws: who gets them, what becomes of them, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.cluster.messages import Progress
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureSource
from tests.routes.drawing import PNG, asked, drawing, picture
from tests.routes.serving import Served, events

URL = "/v1/chat/completions"
X: list[Any] = [{"role": "user", "content": "x"}]


@pytest.fixture
def served() -> Served:
    return drawing()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def test_an_answer(client: httpx.AsyncClient) -> None:
    answer = (await client.post(URL, json={"messages": X})).json()
    [choice] = answer["choices"]
    url = f"data:image/png;base64,{PNG}"
    parts = [{"type": "image_url", "image_url": {"url": url}, "seed": seed} for seed in (7, 8)]
    assert choice["message"] == {"role": "assistant", "content": parts, "refusal": None}
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert (answer["object"], answer["model"]) == ("chat.completion", "smol")
    assert answer["id"].startswith("chatcmpl-")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}


async def test_a_stream(client: httpx.AsyncClient) -> None:
    body = {"messages": X, "stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post(URL, json=body)
    *chunks, usage, done = events(answer.content)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta["content"][0]["seed"] for delta in deltas[1:-1]] == [7, 8]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert usage["usage"]["total_tokens"] == 15
    assert ": step 5/5\n\n" in answer.text


async def test_a_stream_that_fails() -> None:
    served = drawing([[Progress(1, 5), picture()], ApiError(503, "lost", code="replica_lost")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        *_, error, done = events((await client.post(URL, json={"messages": X, "stream": True})).content)
    assert (error["error"]["code"], done) == ("replica_lost", "[DONE]")


async def test_the_prompt_is_what_the_user_says(client: httpx.AsyncClient, served: Served) -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a circle"},
        {"role": "assistant", "content": [part("data:,old")], "refusal": None, "annotations": []},
        {
            "role": "user",
            "content": [{"type": "text", "text": "and"}, part("data:,a"), {"type": "text", "text": "a dot"}],
        },
        {"role": "user", "content": [part("https://a.test/b.png")]},
    ]
    assert (await client.post(URL, json={"messages": messages})).status_code == 200
    assert served.orchestrator.submitted[-1][0] == "image_edit"
    task = asked(served)
    assert task.prompt == "a circle and a dot"
    assert task.images == [
        PictureSource(url="data:,a", param="messages[3].content[1].image_url.url"),
        PictureSource(url="https://a.test/b.png", param="messages[4].content[0].image_url.url"),
    ]


CONTROLS = {
    "size": "64x48",
    "seed": 3,
    "num_inference_steps": 9,
    "guidance_scale": 2.5,
    "guidance_scale_2": 3.5,
    "negative_prompt": "no",
    "layers": 2,
    "lora": {"name": "ink"},
    "num_outputs_per_prompt": 2,
    "cfg_scale": 4.5,
    "extra_args": {"eta": 1},
    "output_format": "webp",
}


@pytest.mark.parametrize("nested", [True, False])
async def test_controls(client: httpx.AsyncClient, served: Served, nested: bool) -> None:
    body = {"messages": X, "extra_body": CONTROLS} if nested else {"messages": X, **CONTROLS}
    answer = await client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    task = asked(served)
    assert (task.width, task.height, task.seed, task.num_inference_steps) == (64, 48, 3, 9)
    assert (task.guidance_scale, task.guidance_scale_2, task.true_cfg_scale) == (2.5, 3.5, 4.5)
    assert (task.negative_prompt, task.layers, task.n, task.extra) == ("no", 2, 2, {"eta": 1})
    assert (task.lora[0].name, task.format, task.base64) == ("ink", "webp", True)


async def test_both_places_together(client: httpx.AsyncClient, served: Served) -> None:
    body = {"messages": X, "width": 64, "height": 48, "extra_body": {"seed": 1, "true_cfg_scale": 2}}
    assert (await client.post(URL, json=body)).status_code == 200
    assert (asked(served).width, asked(served).height, asked(served).seed, asked(served).true_cfg_scale) == (
        64,
        48,
        1,
        2,
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [part("x")]}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [text("x"), part("")]}]}, None),
        ({"modalities": []}, "modalities"),
        ({"modalities": "image"}, "modalities"),
        ({"modalities": [5]}, "modalities[0]"),
        ({"modalities": ["video"]}, "modalities[0]"),
        ({"modalities": ["IMAGE"]}, "modalities[0]"),
        ({"modalities": ["image", "image"]}, "modalities[1]"),
        ({"modalities": ["text"]}, "modalities"),
        ({"temperature": 0.5}, "temperature"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 11}, "n"),
        ({"n": 1, "num_outputs_per_prompt": 1}, "num_outputs_per_prompt"),
        ({"true_cfg_scale": 1, "cfg_scale": 1}, "cfg_scale"),
        ({"width": 64}, "height"),
        ({"height": 64}, "width"),
        ({"width": 64, "height": 64, "size": "64x64"}, "width"),
        ({"size": "big"}, "size"),
        ({"seed": 1, "extra_body": {"seed": 1}}, "extra_body.seed"),
        ({"n": 1, "extra_body": {"num_outputs_per_prompt": 1}}, "extra_body.num_outputs_per_prompt"),
        ({"extra_body": {"num_inference_steps": 0}}, "extra_body.num_inference_steps"),
        ({"extra_body": {"zzz": 0}}, "extra_body.zzz"),
        ({"extra_body": {"messages": X}}, "extra_body.messages"),
        ({"extra_body": 5}, "extra_body"),
        ({"extra_body": {"lora": {}}}, "lora"),
        ({"stream_options": {"include_usage": 5}}, "stream_options.include_usage"),
        ({"stream_options": {"include": True}}, "stream_options.include"),
        ({"response_format": {"type": "text"}}, "response_format"),
    ],
)
async def test_refused(client: httpx.AsyncClient, served: Served, fields: dict[str, Any], param: str | None) -> None:
    answer = await client.post(URL, json={"messages": X} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    if param is not None:
        assert error["param"] == param, error
    assert served.orchestrator.submitted == []


async def test_a_model_that_is_not_served(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, json={"messages": X, "model": "nope"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("tasks", "modalities", "kind"),
    [
        (["chat"], None, "chat"),
        (["chat"], ["image"], "chat"),
        (["chat", "image"], None, "chat"),
        (["chat", "image"], ["text"], "chat"),
        (["chat", "image"], "image", "chat"),
        (["chat", "image"], ["text", "image"], "image"),
        (["image"], None, "image"),
        (["image_edit"], None, "image"),
    ],
)
async def test_who_is_asked(tasks: list[str], modalities: Any, kind: str) -> None:
    served = drawing()
    served.orchestrator.tasks = tasks
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        await client.post(URL, json={"messages": X} | ({"modalities": modalities} if modalities else {}))
    assert served.orchestrator.submitted[-1][0] == kind


async def test_invocations(client: httpx.AsyncClient, served: Served) -> None:
    chat = (await client.post("/invocations", json={"messages": X})).json()
    assert chat["object"] == "chat.completion"
    pictures = (await client.post("/invocations", json={"prompt": "x"})).json()
    assert pictures["data"][0]["b64_json"] == PNG


@pytest.mark.parametrize("up", ["chat", "image"])
@pytest.mark.parametrize(("modalities", "kind"), [(None, "chat"), (["image"], "image")])
async def test_who_is_asked_does_not_depend_on_who_is_up(
    served: Served, client: httpx.AsyncClient, up: str, modalities: list[str] | None, kind: str
) -> None:
    """A worker that is started while the other stage is down has never heard what that one can do."""
    served.orchestrator.tasks, served.orchestrator.known = [up], False
    await client.post(URL, json={"messages": X} | ({"modalities": modalities} if modalities else {}))
    assert served.orchestrator.submitted[-1][0] == kind
