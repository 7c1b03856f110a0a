"""One server with two entry stages, one that chats and one that draws, as the demo has them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.faults.matrix import ENV, ask, wait_serving
from tests.faults.pictures import PATH
from tests.servers import Server, start_server, wait_for

DEPLOY = """
pipeline: stub
stages:
- {stage_id: 0, name: text, devices: cpu}
- {stage_id: 1, name: picture, devices: cpu, outputs: [image], engine_args: {chats: false, draws: true, load_s: 1}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("deploy") / "two.yaml"
    file.write_text(DEPLOY)
    line = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2", "--deploy-config", str(file))
    with start_server(line, ENV) as started:
        wait_serving(started)
        yield started
        assert started.stop() == 0, started.output()
        started.assert_nothing_left()


def draw(server: Server, **extra: object) -> httpx.Response:
    body = {"prompt": "a red circle", **({"extra_params": extra} if extra else {})}
    return httpx.post(server.url + PATH, json=body, timeout=30)


def test_each_kind_of_request_goes_to_its_stage(server: Server) -> None:
    assert ask(server).status_code == 200
    assert draw(server).json()["data"][0]["b64_json"]
    assert server.get("/health").json()["stages"] == [
        {"name": "text", "replicas": 1},
        {"name": "picture", "replicas": 1},
    ]
    [model] = server.get("/v1/models").json()["data"]
    assert {"chat", "image"} <= set(model["tasks"])
    assert (model["output_modalities"], model["card"]["class"]) == (["text", "image"], "Stub")


def test_metrics_know_both_stages(server: Server) -> None:
    text = server.get("/metrics").text
    assert re.findall(r'omni_stage_info{stage="(\d)",name="(\w+)"', text) == [("0", "text"), ("1", "picture")]


def test_the_loss_of_one_stage_is_told_and_leaves_the_other_alone(server: Server) -> None:
    assert draw(server, stub={"exit_after": 1}).status_code == 503
    wait_for(lambda: server.answers("/health", 503), 10, "the outage", 0.02, server=server)
    assert "'picture' (stage 1)" in server.get("/health").json()["error"]["message"]
    assert draw(server).status_code == 503
    assert ask(server).status_code == 200
    server.wait_ready()
    assert draw(server).status_code == 200
