"""`omni-app serve demo` as a newcomer meets it: what it says once it is ready is true."""

from __future__ import annotations

import shlex

import httpx
import pytest

from tests.servers import Server, wait_for


def announced(server: Server) -> dict[str, list[str]]:
    """The words of each command that the server suggests, by path."""
    wait_for(lambda: "Try:" in server.output(), 20, "its last words", server=server)
    lines = server.output().partition("Try:\n")[2].splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("  curl ")]
    return {httpx.URL(words[1]).path: words for words in commands}


@pytest.mark.parametrize(
    ("path", "content_type"), [("/v1/chat/completions", "application/json"), ("/v1/audio/speech", "audio/mpeg")]
)
def test_what_it_suggests_works(path: str, content_type: str, demo: Server) -> None:
    words = announced(demo)[path]
    headers = dict([words[words.index("-H") + 1].split(": ")])
    answer = httpx.post(words[1], headers=headers, content=words[words.index("-d") + 1], timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith(content_type)


def test_all_of_it_is_told(demo: Server) -> None:
    [model] = demo.get("/v1/models").json()["data"]
    assert {"chat", "speech"} <= set(model["tasks"])
    assert {"text", "audio"} <= set(model["output_modalities"])
    assert [stage["name"] for stage in demo.get("/health").json()["stages"]] == ["text", "speech"]
