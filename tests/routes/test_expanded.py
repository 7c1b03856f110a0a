"""Pictures whose prompts a language model has written: every answer tells the prompt."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.cluster.messages import Done, Extra, Progress, Usage
from tests.routes.drawing import PNG, drawing, picture
from tests.routes.serving import Served, Step, events

PROMPT = 'a "red" circle'
TOLD = Extra(b'{"revised_prompt":"a \\"red\\" circle"}')
SCRIPT: list[Step] = [[TOLD], [Progress(1, 5), picture(0), picture(1)], [Usage(3, 12), Done()]]
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return drawing(SCRIPT, directory=tmp_path)


async def post(served: Served, path: str, body: dict[str, object]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize("transport", ["b64_json", "url"])
async def test_a_whole_answer(served: Served, transport: str) -> None:
    body = {"prompt": "x", "response_format": transport}
    data = (await post(served, "/v1/images/generations", body)).json()["data"]
    assert [(item["revised_prompt"], item["seed"]) for item in data] == [(PROMPT, 7), (PROMPT, 8)]
    assert all(item[transport] for item in data)
    assert transport == "url" or data[0]["b64_json"] == PNG


async def test_a_stream(served: Served) -> None:
    answer = await post(served, "/v1/images/generations", {"prompt": "x", "stream": True})
    assert answer.text.count('"revised_prompt":"a \\"red\\" circle"') == 2


async def test_chats(served: Served) -> None:
    answer = (await post(served, "/v1/chat/completions", CHAT)).json()
    assert answer["revised_prompt"] == PROMPT
    chunks = events((await post(served, "/v1/chat/completions", CHAT | {"stream": True})).content)[:-1]
    assert [chunk["revised_prompt"] for chunk in chunks if "revised_prompt" in chunk] == [PROMPT]
