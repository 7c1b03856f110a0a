"""A child process and its output; a shell plays the replica program, everything around it is real."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.cluster import local
from app.cluster.local import LocalReplica, describe_exit
from app.engines.spec import ReplicaSpec
from app.settings.schema import StageConfig
from tests.clusters import alive, eventually, replica_spec, settings


@pytest.fixture
def run_shell(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the child runs: put one script into the list; the spec comes on its standard input."""
    script: list[str] = []
    monkeypatch.setattr(local, "python_command", lambda module, *args: ["bash", "-c", script[0], module, *args])
    return script


@asynccontextmanager
async def spawned(path: Path, **stage: object) -> AsyncIterator[LocalReplica]:
    spec = replica_spec(path, settings())
    for name, value in stage.items():
        setattr(spec.stage, name, value)
    replica = LocalReplica(spec)
    await replica.spawn()
    try:
        yield replica
    finally:
        await replica.stop(grace_s=1)


async def test_the_last_lines_are_kept_and_all_but_blank_ones_are_passed_on(
    tmp_path: Path, run_shell: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_shell.append("for i in $(seq 50); do echo out $i; done; echo; echo err >&2; printf 'no newline \\xff'; exit 7")
    async with spawned(tmp_path) as replica:
        assert await replica.wait() == 7
        tail = replica.tail().split("\n")
    printed = capsys.readouterr().err.splitlines()
    assert printed[:50] == [f"[stub/0] out {i}" for i in range(1, 51)]
    assert len(tail) == 20
    assert tail[-3:] == ["out 50", "err", "no newline \ufffd"]


async def test_the_first_error_is_found_among_what_it_printed(tmp_path: Path, run_shell: list[str]) -> None:
    run_shell.append(
        "echo '(EngineCore) ERROR ValueError: no such layer'; seq 50; echo 'RuntimeError: see above'; exit 1"
    )
    async with spawned(tmp_path) as replica:
        await replica.wait()
        assert replica.first_error(beside="RuntimeError: see above") == "ValueError: no such layer"
        assert replica.first_error(beside="ValueError: no such layer") == "RuntimeError: see above"


async def test_a_very_long_line_comes_in_pieces_and_nothing_after_it_is_lost(
    tmp_path: Path, run_shell: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_shell.append("head -c 300000 /dev/zero | tr '\\0' x; echo; echo after")
    async with spawned(tmp_path) as replica:
        assert await replica.wait() == 0
        assert replica.tail().endswith("\nafter")
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.count("x") for line in lines) == 300_000
    assert lines[-1] == "[stub/0] after"


async def test_grandchildren_neither_hold_up_the_news_nor_survive(tmp_path: Path, run_shell: list[str]) -> None:
    """An engine's own processes inherit the pipe; asyncio would wait for them to close it."""
    run_shell.append("sleep 60 & echo $!; kill -9 $$")
    async with spawned(tmp_path) as replica:
        assert await asyncio.wait_for(replica.wait(), 5) == -9
        grandchild = int(replica.tail())
        await eventually(lambda: not alive(grandchild))


async def test_who_ignores_sigterm_is_killed_with_its_children_after_the_grace_period(
    tmp_path: Path, run_shell: list[str]
) -> None:
    run_shell.append("trap '' TERM; sleep 60 & echo $!; while :; do sleep 0.1; done")
    async with spawned(tmp_path) as replica:
        await eventually(lambda: replica.tail() != "")
        pids = [replica.pid, int(replica.tail())]
        await replica.stop(grace_s=0.2)
        await eventually(lambda: not any(map(alive, pids)))


async def test_stop_lets_it_finish(tmp_path: Path, run_shell: list[str]) -> None:
    run_shell.append("trap 'echo finished; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    async with spawned(tmp_path) as replica:
        await eventually(lambda: replica.tail() == "begun")
        await replica.stop(grace_s=10)
        assert await replica.wait() == 0
        assert replica.tail() == "begun\nfinished"


async def test_the_spec_comes_on_standard_input_and_is_nowhere_else(tmp_path: Path, run_shell: list[str]) -> None:
    run_shell.append('read -r line; echo "$line"; tr "\\0" "\\n" </proc/$$/environ | grep -c SECRET; exec sleep 60')
    async with spawned(tmp_path) as replica:
        replica.spec.token = "SECRET"
        await replica.stop(grace_s=1)
        await replica.spawn()
        await eventually(lambda: replica.tail().endswith("\n0"))
        assert msgspec.json.decode(replica.tail().split("\n")[0], type=ReplicaSpec) == replica.spec
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("devices", "visible"), [("1,3", "1,3"), ("cpu", "inherited"), ("", "inherited")], ids=["some", "cpu", "all"]
)
async def test_devices_and_environment_reach_it(
    tmp_path: Path, run_shell: list[str], monkeypatch: pytest.MonkeyPatch, devices: str, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "inherited")
    run_shell.append("echo $CUDA_VISIBLE_DEVICES $OF_THE_STAGE")
    async with spawned(tmp_path, devices=devices, env={"OF_THE_STAGE": "yes"}) as replica:
        await replica.wait()
        assert replica.tail() == f"{visible} yes"


async def test_it_can_be_spawned_again(tmp_path: Path, run_shell: list[str]) -> None:
    run_shell.append("echo $$; exit 1")
    async with spawned(tmp_path) as replica:
        await replica.wait()
        first = replica.tail()
        await replica.spawn()
        assert await replica.wait() == 1
        assert replica.tail() == str(replica.pid) != first


async def test_nothing_happens_before_it_has_been_spawned(tmp_path: Path) -> None:
    """kill() of pid 0 would be the end of our own process group."""
    replica = LocalReplica(replica_spec(tmp_path, settings()))
    replica.kill()
    await replica.stop(grace_s=1)
    assert replica.pid == 0
    assert alive(os.getpid())


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-99) == "killed by signal 99"


def test_its_name_is_for_people(tmp_path: Path) -> None:
    spec = replica_spec(tmp_path, settings())
    spec.stage = StageConfig(stage_id=1, name="talker", kind="stub", model="m")
    assert LocalReplica(msgspec.structs.replace(spec, replica_id=2)).name == "talker/2"
    assert LocalReplica(msgspec.structs.replace(spec, replica_id=-1)).name == "talker/0"
