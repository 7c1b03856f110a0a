"""A server whose stages, with their models, are what a deploy file says; nobody names a model."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.servers import Server, free_port, start_server, wait_for

LOAD_S = 120
FILE = """
pipeline: custom
stages:
  - {stage_id: 0, name: text, kind: stub}
  - {stage_id: 3, name: speech, kind: speech, model: demo, sources: [text], devices: cpu}
"""


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("deploy") / "talking.yaml"
    file.write_text(FILE)
    return file


@pytest.fixture(scope="module")
def master() -> dict[str, str]:
    """The variables by which server and headless replicas find each other."""
    return {"OMNI_MASTER_PORT": str(free_port()), "OMNI_TOKEN": "t"}


@pytest.fixture(scope="module")
def server(deploy: Path, master: dict[str, str]) -> Iterator[Server]:
    """The bare granian line; tests of `omni-app serve` are in test_examples.py."""
    with start_server(env={"OMNI_DEPLOY_CONFIG": str(deploy), **master}) as started:
        yield started.wait_ready(LOAD_S)


def test_it_has_the_name_of_its_file(server: Server) -> None:
    [model] = server.get("/v1/models").json()["data"]
    assert model["id"] == "talking"
    assert {"chat", "speech"} <= set(model["tasks"])


def test_what_one_stage_says_the_other_speaks(server: Server) -> None:
    body = {
        "model": "talking",
        "messages": [{"role": "user", "content": "Good morning."}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "heart", "format": "wav"},
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert base64.b64decode(answer.json()["choices"][0]["message"]["audio"]["data"]).startswith(b"RIFF")


def test_a_headless_replica_joins_the_second_stage(server: Server, deploy: Path, master: dict[str, str]) -> None:
    line = ("omni-app", "headless", "--deploy-config", str(deploy), "--stage-id", "3")
    with start_server(line, master) as elsewhere:
        wait_for(lambda: voices(server) == 2, LOAD_S, "the headless replica to join", 0.2, server=elsewhere)
        assert elsewhere.stop() == 0, elsewhere.output()
    wait_for(lambda: voices(server) == 1, 20, "it to leave", server=server)


def test_one_that_was_told_something_else_is_refused(server: Server, deploy: Path, master: dict[str, str]) -> None:
    line = ("omni-app", "headless", "--deploy-config", str(deploy), "--stage-id", "3", "--max-sentence-chars", "99")
    with start_server(line, master) as elsewhere:
        assert elsewhere.wait(LOAD_S) != 0
        assert "the master refused this replica" in elsewhere.output()


def voices(server: Server) -> int:
    """Replicas of the speech stage that answer, as /health says."""
    stages = server.get("/health").json()["stages"]
    count: int = next(stage["replicas"] for stage in stages if stage["name"] == "speech")
    return count
