"""The image routes over a scripted model that draws: what reaches the replica, and how its answer is written."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cluster.messages import Done, Progress, Usage
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureSource
from tests.routes.drawing import PNG, asked, drawing, picture
from tests.routes.serving import Served, exchange

GENERATIONS, EDITS, VARIATIONS = (f"/v1/images/{name}" for name in ("generations", "edits", "variations"))
FILE = ("a.png", b"\x89PNG", "image/png")


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return drawing(directory=tmp_path)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


def error(answer: httpx.Response, status: int = 400) -> tuple[str | None, str | None]:
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found["param"], found["code"]


def named_events(text: str) -> list[tuple[str, Any]]:
    frames = [frame.split("\n") for frame in text.split("\n\n") if frame.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in frames]


async def test_an_answer(client: httpx.AsyncClient) -> None:
    answer = (await client.post(GENERATIONS, json={"prompt": "x"})).json()
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "data": [{"b64_json": PNG, "seed": 7}, {"b64_json": PNG, "seed": 8}],
        "size": "64x48",
        "output_format": "png",
        "quality": "medium",
        "background": "opaque",
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"text_tokens": 3, "image_tokens": 0},
            "output_tokens": 12,
            "output_tokens_details": {"text_tokens": 0, "image_tokens": 12},
            "total_tokens": 15,
        },
    }


async def test_pictures_are_in_the_order_of_their_index() -> None:
    served = drawing([[picture(1, data=b"MQ=="), picture(0, data=b"MA==")], [Usage(1, 2), Done()]])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = (await client.post(GENERATIONS, json={"prompt": "x"})).json()
    assert [(item["b64_json"], item["seed"]) for item in answer["data"]] == [("MA==", 7), ("MQ==", 8)]


async def test_the_engine_knows_what_its_tokens_are() -> None:
    details = b'{"input_tokens_details":{"text_tokens":1,"image_tokens":9}}'
    served = drawing([[picture()], [Usage(10, 2, details), Done()]])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        usage = (await client.post(GENERATIONS, json={"prompt": "x"})).json()["usage"]
    assert usage["input_tokens_details"] == {"text_tokens": 1, "image_tokens": 9}


async def test_quality_and_background_of_the_answer(client: httpx.AsyncClient, served: Served) -> None:
    body = {"prompt": "x", "quality": "hd", "background": "transparent"}
    answer = (await client.post(GENERATIONS, json=body)).json()
    assert (answer["quality"], answer["background"]) == ("high", "transparent")
    assert (asked(served).num_inference_steps, asked(served).transparent) == (8, True)


@pytest.mark.parametrize("prompt", ["", " ", "\n\t "])
async def test_an_empty_prompt(client: httpx.AsyncClient, served: Served, prompt: str) -> None:
    assert error(await client.post(GENERATIONS, json={"prompt": prompt}))[0] == "prompt"
    assert error(await client.post(EDITS, json={"prompt": prompt, "image": "x"}))[0] == "prompt"
    assert served.orchestrator.submitted == []


async def test_a_model_that_is_not_served(client: httpx.AsyncClient) -> None:
    for answer in (
        await client.post(GENERATIONS, json={"prompt": "x", "model": "dall-e-3"}),
        await client.post(EDITS, data={"prompt": "x", "model": "dall-e-3"}, files={"image": FILE}),
        await client.post(VARIATIONS, data={"model": "dall-e-3"}, files={"image": FILE}),
    ):
        assert error(answer, 404) == ("model", "model_not_found")


async def test_a_refusal_of_the_replica_is_the_answer(client: httpx.AsyncClient, served: Served) -> None:
    async def refuse() -> None:
        raise ApiError(400, "it takes no mask", param="mask")

    served.orchestrator.before = refuse
    assert error(await client.post(GENERATIONS, json={"prompt": "x", "stream": True}))[0] == "mask"


# ------------------------------------------------------------------------------------------------ transports


async def test_one_picture_as_a_file() -> None:
    served = drawing([[picture(data=b"\x89PNG")], [Done()]])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(GENERATIONS, json={"prompt": "x", "response_format": "file"})
    assert answer.content == b"\x89PNG"
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == 'attachment; filename="image.png"'
    assert not asked(served).base64


async def test_several_pictures_as_an_archive(client: httpx.AsyncClient) -> None:
    answer = await client.post(GENERATIONS, json={"prompt": "x", "n": 2, "response_format": "file"})
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["image_0.png", "image_1.png"]
        assert archive.read("image_1.png") == PNG.encode()


async def test_a_link_leads_to_the_picture(client: httpx.AsyncClient) -> None:
    answer = (await client.post(GENERATIONS, json={"prompt": "x", "response_format": "url"})).json()
    links = [item["url"] for item in answer["data"]]
    assert len(set(links)) == 2
    assert [item["seed"] for item in answer["data"]] == [7, 8]
    assert "b64_json" not in answer["data"][0]
    found = await client.get(links[0])
    assert (found.content, found.headers["content-type"]) == (PNG.encode(), "image/png")


# ------------------------------------------------------------------------------------------------ streams


async def test_a_stream(client: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "stream": True, "partial_images": 1}
    answer = await client.post(GENERATIONS, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    names, frames = zip(*named_events(answer.text), strict=True)
    assert names == ("image_generation.partial_image", *["image_generation.completed"] * 2)
    assert [frame["type"] for frame in frames] == list(names)
    assert (frames[0]["partial_image_index"], frames[0]["b64_json"], "usage" in frames[0]) == (0, PNG, False)
    assert [(frame["index"], frame["seed"], frame["usage"]["total_tokens"]) for frame in frames[1:]] == [
        (0, 7, 15),
        (1, 8, 15),
    ]
    assert ": step 1/5\n\n" in answer.text
    assert ": step 5/5\n\n" in answer.text


async def test_a_stream_of_an_edit_and_a_variation(client: httpx.AsyncClient) -> None:
    for url in (EDITS, VARIATIONS):
        answer = await client.post(url, data={"prompt": "x", "stream": "true"}, files={"image": FILE})
        assert named_events(answer.text)[-1][0] == "image_edit.completed"


async def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    served = drawing([[Progress(1, 5), picture(preview=0)], ApiError(503, "lost", code="replica_lost")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        answer = await client.post(GENERATIONS, json={"prompt": "x", "stream": True})
    name, data = named_events(answer.text)[-1]
    assert (name, data["error"]["code"]) == ("error", "replica_lost")


async def test_a_silent_stream_is_kept_alive() -> None:
    served = drawing([asyncio.Event()], sse_keep_alive_s=0.02)
    async with exchange(served, GENERATIONS, {"prompt": "x", "stream": True}) as running:
        assert await running.chunk() == b": keep-alive\n\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("url", [GENERATIONS, EDITS, "/v1/chat/completions"])
async def test_a_client_that_leaves_ends_the_request(url: str, stream: bool) -> None:
    served = drawing([[Progress(1, 5)], asyncio.Event()])
    messages = {"messages": [{"role": "user", "content": "x"}]}
    body = messages if "chat" in url else {"prompt": "x"} | ({"image": "x"} if url == EDITS else {})
    async with exchange(served, url, {**body, "stream": stream}) as running:
        await served.orchestrator.accepted.wait()
        if stream:
            await running.chunk()
        running.leave()
        async with asyncio.timeout(5):
            await served.orchestrator.streams[0].closed.wait()


# ------------------------------------------------------------------------------------------------ edits


async def test_an_edit_in_a_form(client: httpx.AsyncClient, served: Served) -> None:
    files = [
        ("image", FILE),
        ("url", (None, "https://a.test/b.png")),
        ("image[]", ("c.png", b"c", "image/png")),
        ("image[7]", (None, "data:image/png;base64,AAAA")),
        ("mask", ("m.png", b"m", "image/png")),
    ]
    data = {"prompt": "greener", "n": "2", "strength": "0.5", "size": "auto"}
    answer = await client.post(EDITS, data=data, files=files)
    assert answer.status_code == 200, answer.text
    task = asked(served)
    assert task.images == [
        PictureSource(data=b"\x89PNG", param="image"),
        PictureSource(url="https://a.test/b.png", param="url"),
        PictureSource(data=b"c", param="image[]"),
        PictureSource(url="data:image/png;base64,AAAA", param="image[7]"),
    ]
    assert task.mask == PictureSource(data=b"m", param="mask")
    assert (task.prompt, task.n, task.strength) == ("greener", 2, 0.5)


async def test_an_edit_in_json(client: httpx.AsyncClient, served: Served) -> None:
    body = {"prompt": "x", "images": [{"image_url": "data:,a"}, "data:,b"], "mask_image": "data:,m"}
    assert (await client.post(EDITS, json=body)).status_code == 200
    task = asked(served)
    assert [source.url for source in task.images] == ["data:,a", "data:,b"]
    assert task.mask == PictureSource(url="data:,m", param="mask_image")


async def test_a_large_body_is_decoded_beside_the_loop(client: httpx.AsyncClient, served: Served) -> None:
    url = "data:image/png;base64," + "A" * 1_000_000
    assert (await client.post(EDITS, json={"prompt": "x", "image": url})).status_code == 200
    assert asked(served).images[0].url == url
    assert error(await client.post(EDITS, json={"prompt": "x", "image": url, "n": 0}))[0] == "n"


async def test_a_part_without_a_file_name_is_a_file_by_its_type(client: httpx.AsyncClient, served: Served) -> None:
    part = b"--b\r\nContent-Disposition: form-data; name=%b\r\n%b\r\n%b\r\n"
    body = part % (b'"image"', b"Content-Type: image/png\r\n", b"\x89\xff") + part % (b'"prompt"', b"", b"x") + b"--b--"
    answer = await client.post(EDITS, content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 200, answer.text
    assert asked(served).images[0].data == b"\x89\xff"


@pytest.mark.parametrize(
    ("data", "files", "param"),
    [
        ({"prompt": "x"}, [("n", (None, "1"))], "image"),
        ({"prompt": "x"}, [("image", ("a.png", b"", "image/png"))], "image"),
        ({"prompt": "x"}, [("image", (None, " "))], "image"),
        ({"prompt": "x"}, [("image", FILE)] * 17, "image"),
        ({}, [("image", FILE)], "prompt"),
        ({"prompt": " "}, [("image", FILE)], "prompt"),
        ({"prompt": "x", "n": "0"}, [("image", FILE)], "n"),
        ({"prompt": "x", "output_compression": "101"}, [("image", FILE)], "output_compression"),
        ({"prompt": "x", "layers": "1"}, [("image", FILE)], "layers"),
        ({"prompt": "x", "lora": "{"}, [("image", FILE)], "lora"),
        ({"prompt": "x", "input_fidelity": "high"}, [("image", FILE)], "input_fidelity"),
        ({"prompt": "x", "modle": "x"}, [("image", FILE)], "modle"),
        ({"prompt": "x"}, [("image", FILE), ("prompt", FILE)], "prompt"),
        ({"prompt": "x"}, [("image", FILE), ("n", (None, "1")), ("n", (None, "2"))], "n"),
        ({"prompt": "x"}, [("image", FILE), ("mask", FILE), ("mask_image", FILE)], "mask_image"),
        ({"prompt": "x"}, [("image", FILE), ("mask", ("m.png", b"", "image/png"))], "mask"),
        ({"prompt": "x"}, [("image", (None, b"\xff\xfe"))], "image"),
    ],
)
async def test_wrong_edits(
    client: httpx.AsyncClient, served: Served, data: dict[str, str], files: list[Any], param: str
) -> None:
    assert error(await client.post(EDITS, data=data, files=files))[0] == param
    assert served.orchestrator.submitted == []


async def test_variations_are_forms(client: httpx.AsyncClient) -> None:
    assert error(await client.post(VARIATIONS, json={"image": "x"}), 415)[1] == "unsupported_media_type"
    assert error(await client.post(VARIATIONS, files={"mask": FILE, "image": FILE}))[0] == "mask"
    assert error(await client.post(VARIATIONS, data={"n": "1"}, files={"x": (None, "1")}))[0] == "x"


async def test_edits_are_forms_or_json(client: httpx.AsyncClient) -> None:
    assert error(await client.post(EDITS, data={"prompt": "x"}), 415)[1] == "unsupported_media_type"
