"""The `openai` package as the judge of our image routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.cluster.messages import Progress
from app.protocol.errors import ApiError
from tests.routes.drawing import PNG, asked, drawing, picture
from tests.routes.serving import Served

FILE = ("a.png", b"\x89PNG", "image/png")


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return drawing(directory=tmp_path)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(served.app))
    async with openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0) as client:
        yield client


def check(answer: Any, n: int = 2) -> None:
    """OpenAI's own types hold what they promise."""
    assert [image.b64_json for image in answer.data] == [PNG] * n
    assert [image.seed for image in answer.data] == [7, 8][:n]
    assert (answer.size, answer.output_format, answer.quality, answer.background) == (
        "64x48",
        "png",
        "medium",
        "opaque",
    )
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (3, 12, 15)
    assert answer.usage.input_tokens_details.text_tokens == 3
    type(answer).model_validate(answer.model_dump(), strict=True)


async def test_generation(client: openai.AsyncOpenAI, served: Served) -> None:
    check(await client.images.generate(model="smol", prompt="a circle", n=2, size="64x48", user="u", moderation="low"))
    assert served.orchestrator.submitted[-1][0] == "image"
    task = asked(served)
    assert (task.prompt, task.n, task.width, task.height, task.base64) == ("a circle", 2, 64, 48, True)


async def test_extra_body_is_the_root(client: openai.AsyncOpenAI, served: Served) -> None:
    extra = {"seed": 3, "num_inference_steps": 9, "lora": {"name": "ink", "scale": 0.5}, "extra_params": {"eta": 0.1}}
    await client.images.generate(prompt="x", extra_body=extra)
    task = asked(served)
    assert (task.seed, task.num_inference_steps, task.extra) == (3, 9, {"eta": 0.1})
    assert [(choice.name, choice.scale) for choice in task.lora] == [("ink", 0.5)]


async def test_edit_of_one_picture(client: openai.AsyncOpenAI, served: Served) -> None:
    check(await client.images.edit(image=FILE, prompt="greener", mask=("m.png", b"mask", "image/png"), n=2))
    task = asked(served)
    assert served.orchestrator.submitted[-1][0] == "image_edit"
    assert [source.data for source in task.images] == [b"\x89PNG"]
    assert task.mask is not None
    assert (task.mask.data, task.prompt, task.n) == (b"mask", "greener", 2)


async def test_edit_of_several_pictures(client: openai.AsyncOpenAI, served: Served) -> None:
    extra = {"seed": 3, "guidance_scale": 2.5, "lora": {"name": "ink", "scale": 0.5}, "extra_params": {"eta": 1}}
    await client.images.edit(image=[FILE, ("b.webp", b"RIFF", "image/webp")], prompt="both", extra_body=extra)
    task = asked(served)
    assert [source.data for source in task.images] == [b"\x89PNG", b"RIFF"]
    assert (task.seed, task.guidance_scale, task.lora[0].scale, task.extra) == (3, 2.5, 0.5, {"eta": 1})


async def test_variation(client: openai.AsyncOpenAI, served: Served) -> None:
    with pytest.deprecated_call():
        answer = await client.images.create_variation(image=FILE, n=2, size="256x256", response_format="b64_json")
    check(answer)
    assert served.orchestrator.submitted[-1][0] == "image_variation"


async def test_streamed_generation(client: openai.AsyncOpenAI, served: Served) -> None:
    stream = await client.images.generate(prompt="x", stream=True, partial_images=1)
    events: list[Any] = [event async for event in stream]
    assert [event.type for event in events] == ["image_generation.partial_image"] + ["image_generation.completed"] * 2
    assert events[0].partial_image_index == 0
    assert [event.usage.total_tokens for event in events[1:]] == [15, 15]
    for event in events:
        assert (event.b64_json, event.size, event.output_format) == (PNG, "64x48", "png")
        type(event).model_validate(event.model_dump(), strict=True)
    assert asked(served).previews == 1


async def test_streamed_edit(client: openai.AsyncOpenAI) -> None:
    stream = await client.images.edit(image=FILE, prompt="x", stream=True, partial_images=1)
    events: list[Any] = [event async for event in stream]
    assert [event.type for event in events] == ["image_edit.partial_image"] + ["image_edit.completed"] * 2
    for event in events:
        type(event).model_validate(event.model_dump(), strict=True)


async def test_links(client: openai.AsyncOpenAI, served: Served) -> None:
    answer = await client.images.generate(prompt="x", response_format="url")
    assert answer.data is not None
    assert not asked(served).base64
    for image in answer.data:
        assert image.b64_json is None
        assert image.url is not None
        assert image.url.startswith("http://test/v1/files/generated/")


async def test_refusals_are_bad_requests(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.images.generate(prompt="x", style="vivid")
    assert (caught.value.param, caught.value.code) == ("style", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.images.generate(prompt="x", model="gpt-image-2")
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")


async def test_a_stream_that_fails_raises() -> None:
    served = drawing([[Progress(1, 2), picture(preview=0)], ApiError(503, "the replica was lost", code="replica_lost")])
    http = httpx.AsyncClient(transport=httpx.ASGITransport(served.app))
    async with openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0) as client:
        stream = await client.images.generate(prompt="x", stream=True)
        assert (await anext(stream)).type == "image_generation.partial_image"
        with pytest.raises(openai.APIError, match="the replica was lost"):
            await anext(stream)


async def test_a_chat_with_a_model_that_draws(client: openai.AsyncOpenAI) -> None:
    url = "data:image/png;base64,AAAA"
    parts: Any = [{"type": "text", "text": "a circle"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = await client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": parts}], extra_body={"seed": 1}
    )
    content: Any = answer.choices[0].message.content
    assert [part["image_url"]["url"] for part in content] == [f"data:image/png;base64,{PNG}"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)


async def test_a_streamed_chat_with_a_model_that_draws(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "a circle"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks: list[Any] = [chunk async for chunk in stream]
    deltas = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    assert deltas[0] == ""
    assert json.dumps(deltas).count(PNG) == 2
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None, None, None, "stop"]
    assert chunks[-1].usage.total_tokens == 15
