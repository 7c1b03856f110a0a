"""`omni-app serve demo` as a newcomer meets it: what it says once it is ready is true."""

from __future__ import annotations

import base64
import io
import shlex

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from tests.demo.eyes import Seen, look
from tests.servers import Server, wait_for


def announced(server: Server) -> dict[str, list[str]]:
    """The words of each command that the server suggests, by path."""
    wait_for(lambda: "Try:" in server.output(), 20, "its last words", server=server)
    lines = server.output().partition("Try:\n")[2].splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("  curl ")]
    return {httpx.URL(words[1]).path: words for words in commands}


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/v1/chat/completions", "application/json"),
        ("/v1/audio/speech", "audio/mpeg"),
        ("/v1/images/generations", "image/png"),
    ],
)
def test_what_it_suggests_works(path: str, content_type: str, demo: Server) -> None:
    words = announced(demo)[path]
    headers = dict([words[words.index("-H") + 1].split(": ")])
    answer = httpx.post(words[1], headers=headers, content=words[words.index("-d") + 1], timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith(content_type)


def test_all_of_it_is_told(demo: Server) -> None:
    [model] = demo.get("/v1/models").json()["data"]
    assert {"chat", "speech", "image"} <= set(model["tasks"])
    assert {"text", "audio", "image"} <= set(model["output_modalities"])
    assert [stage["name"] for stage in demo.get("/health").json()["stages"]] == ["text", "speech", "picture"]


def drawn(answer: httpx.Response) -> tuple[str, list[Seen]]:
    assert answer.status_code == 200, answer.text
    [picture] = answer.json()["data"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["b64_json"]))).convert("RGB"))
    return look(torch.from_numpy(pixels.copy()))


def test_it_draws(demo: Server) -> None:
    asked = {
        "a red circle on a blue background": ("blue", "red", "circle"),
        "a yellow star on black": ("black", "yellow", "star"),
    }
    for prompt, (background, colour, shape) in asked.items():
        answer = httpx.post(f"{demo.url}/v1/images/generations", json={"prompt": prompt, "seed": 7}, timeout=120)
        assert drawn(answer) == (background, [Seen(shape, colour, "medium", "middle")])


def test_a_chat_draws_where_pictures_are_asked_for(demo: Server) -> None:
    messages = [{"role": "user", "content": "a green square on a white background"}]
    body = {"messages": messages, "modalities": ["image"], "seed": 7}
    answer = httpx.post(f"{demo.url}/v1/chat/completions", json=body, timeout=120).json()
    [part] = answer["choices"][0]["message"]["content"]
    assert part["image_url"]["url"].startswith("data:image/png;base64,")
