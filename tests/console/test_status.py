"""The table of stages and replicas; and the commands against a server whose second stage runs elsewhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from app.console.status import table
from app.protocol.status import StatusReport
from tests.servers import BIN, Server, free_port, start_server, wait_for

NOW = 1000.0
KEY = "sk-admin"
FILE = """
pipeline: stub
stages:
  - {stage_id: 0, name: text, kind: stub, devices: cpu}
  - {stage_id: 1, name: more, kind: stub, devices: cpu}
"""


def report(**replica: object) -> StatusReport:
    base = {
        "replica_id": 0, "host": "here", "pid": 7, "state": "up", "in_flight": 5, "queue": 3, "held": 0, "restarts": 0,
        "since": NOW - 12, "address": "ipc:///r", "local": True, "version": "0.1.0", "engine": "vllm 0.32.0",
        "note": "",
    }  # fmt: skip
    stage = {"stage_id": 0, "name": "text", "kind": "llm", "model": "org/m", "lb_policy": "random", "wanted": 1}
    return msgspec.convert({"stages": [{**stage, "replicas": [{**base, **replica}]}]}, StatusReport)


def test_a_table_has_a_line_for_each_replica() -> None:
    head, columns, line = table(report(), NOW)
    assert head == "stage 0 (text, llm, org/m): 1 up; 1 wanted here"
    assert columns.split("  ")[1:3] == ["ID", "STATE"]
    assert line.split() == ["0", "up", "12", "s", "5", "3", "here", "7", "0", "0.1.0", "vllm", "0.32.0"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (-1, "0 s"), (184, "3 min 4 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_times_are_for_people(seconds: float, words: str) -> None:
    *_, line = table(report(since=NOW - seconds, state="down", note="killed by SIGKILL"), NOW)
    assert f"  {words}  " in line
    assert line.endswith("killed by SIGKILL")


def test_a_stage_that_sleeps_is_told() -> None:
    sleeping = report()
    sleeping.stages[0].asleep = 2
    assert next(table(sleeping, NOW)) == "stage 0 (text, llm, org/m): 1 up, asleep (level 2); 1 wanted here"


def test_a_stage_without_replicas_is_told() -> None:
    empty = report()
    empty.stages[0].replicas.clear()
    assert list(table(empty, NOW)) == ["stage 0 (text, llm, org/m): no replica; 1 wanted here"]


# ------------------------------------------------------------------------------------------------ a whole server


def omni(*words: str, key: str = KEY, port: int = 0) -> subprocess.CompletedProcess[str]:
    line = [str(BIN / "omni-app"), *words, "--api-key", key, "--url", f"http://127.0.0.1:{port}"]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It runs stage 0; two replicas of stage 1 have come from a headless command, over an encrypted connection."""
    directory = tmp_path_factory.mktemp("split")
    (directory / "two.yaml").write_text(FILE)
    (directory / "token").write_text("of the test\n")
    common = (
        "stub", "--deploy-config", "two.yaml", "-omp", str(free_port()), "--omni-token-file", "token", "--omni-encrypt",
    )  # fmt: skip
    serve = ("omni-app", "serve", *common, "--stage-id", "0", "--port", "{port}", "--api-key", KEY)
    headless = ("omni-app", "headless", *common, "--stage-id", "1", "--omni-dp-size-local", "2")
    with start_server(serve, cwd=directory) as started:
        wait_for(lambda: "waiting for stage 1 (more): 0 of 1 replicas up" in started.output(), 30, "it to say so")
        assert not started.answers("/livez")
        with start_server(headless, cwd=directory):
            started.wait_ready()
            yield started


def states(server: Server, stage: int) -> list[str]:
    answer = httpx.get(f"{server.url}/v1/omni/status", headers={"Authorization": f"Bearer {KEY}"}, timeout=10)
    return [replica["state"] for replica in answer.json()["stages"][stage]["replicas"]]


def test_the_status_of_a_server_over_two_hosts(server: Server, tmp_path: Path) -> None:
    wait_for(lambda: states(server, 1) == ["up", "up"], 20, "both replicas", server=server)
    shown = omni("status", port=server.port)
    assert shown.returncode == 0, shown.stderr
    assert "stage 0 (text, stub, stub): 1 up; 1 wanted here" in shown.stdout
    assert "stage 1 (more, stub, stub): 2 up; 0 wanted here" in shown.stdout
    content = json.loads(omni("status", "--json", port=server.port).stdout)
    assert [len(stage["replicas"]) for stage in content["stages"]] == [1, 2]
    addresses = [replica["address"] for replica in content["stages"][1]["replicas"]]
    assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)


def test_stages_of_this_host_are_scaled_and_others_are_not(server: Server) -> None:
    more = omni("scale", "text", "2", port=server.port)
    assert (more.returncode, more.stdout.splitlines()[-1]) == (0, "stage 0 (text, stub, stub): 2 up; 2 wanted here")
    assert states(server, 0) == ["up", "up"]
    less = omni("scale", "0", "1", port=server.port)
    assert (less.returncode, states(server, 0)) == (0, ["up"]), less.stderr
    refused = omni("scale", "more", "3", port=server.port)
    assert refused.returncode == 1
    assert "stage 1 (more) runs on other hosts" in refused.stderr


def test_what_the_commands_say_when_they_get_no_answer(server: Server) -> None:
    denied = omni("status", key="wrong", port=server.port)
    assert (denied.returncode, "not known to this server" in denied.stderr) == (1, True)
    nobody = omni("status", port=free_port())
    assert nobody.returncode == 1
    assert "no server answers at http://127.0.0.1:" in nobody.stderr
