"""The command as a user types it, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("omni-app"))]


def environment(**more: str) -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("OMNI_")} | more


def omni(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env=environment(**variables),
        check=False,
    )


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def hostile_directory(tmp_path: Path) -> Path:
    """A working directory whose own app.py and app/ must not be taken for ours."""
    (tmp_path / "app.py").write_text("raise SystemExit('the wrong app.py')")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    return tmp_path


def test_the_command_imports_nothing_heavy() -> None:
    heavy = "{'litestar', 'granian', 'torch', 'vllm', 'transformers', 'zmq', 'yaml'}"
    code = (
        f"import sys, app.cli; sys.exit(str(sorted({heavy} & set(sys.modules))) if {heavy} & set(sys.modules) else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_help_lists_the_commands() -> None:
    result = omni("--help")
    assert result.returncode == 0
    for command in ("serve", "headless", "config", "status", "scale", "version"):
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        (
            ["serve", "--help"],
            ["--port", "--stage-id", "omni-app serve demo", "--help=all"],
            ["--sse-keep-alive", "-ora"],
        ),
        (["serve", "-h"], ["--port"], ["--sse-keep-alive"]),
        (["serve", "demo", "--help=all"], ["--port", "--sse-keep-alive", "--lora-modules"], ["-ora"]),
        (["serve", "--help=frontend"], ["--chat-template"], ["--port", "--dtype"]),
        (["headless", "--help=max_num"], ["--max-num-seqs", "--max-num-batched-tokens"], ["--max-model-len"]),
        (["headless", "--help"], ["--stage-id", "-oma, --omni-master-address"], ["--workers"]),
        (["config", "--help"], ["--json"], []),
    ],
)
def test_help_topics(words: list[str], shown: list[str], hidden: list[str]) -> None:
    result = omni(*words)
    assert (result.returncode, result.stderr) == (0, "")
    assert [word for word in shown if word not in result.stdout] == []
    assert [word for word in hidden if f"{word} " in result.stdout] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve"], "no model: set OMNI_MODEL"),
        (["serve", "--omni", "--port", "8091"], "no model"),
        (["serve", "demo", "--prot", "1"], "there is no flag --prot (did you mean --port?)"),
        (["serve", "demo", "--workers", "x"], "flag --workers: expected a whole number, got 'x'"),
        (["serve", "demo", "--stage-id", "0"], "--omni-master-port is missing: where stages 1 ("),
        (["serve", "demo", "--help=nothing-such"], "no flag has 'nothing-such' in its name"),
        (["serve", "/no/such/model"], "there is no model at /no/such/model"),
        (["headless", "demo"], "--stage-id is missing"),
        (
            ["headless", "demo", "--stage-id", "99", "-omp", "1"],
            "flag --stage-id: there is no stage 99; this model has 0",
        ),
        (["headless", "demo", "--stage-id", "0"], "--omni-master-port is missing"),
        (["serve", "demo", "--headless", "--stage-id", "0"], "--omni-master-port is missing"),
        (["headless", "demo", "--workers", "2"], "--workers belongs to `omni-app serve`"),
        (
            ["serve", "demo", "--headless", "--stage-id", "0", "-omp", "1", "--api-server-count", "2"],
            "--workers (--api-server-count) and --headless exclude each other",
        ),
        (["serve", "demo", "-ora", "10.0.0.1"], "--omni-replica-address belongs to `omni-app headless`"),
        (["config", "--convert", "/nope.yaml"], "/nope.yaml: cannot be read: No such file or directory"),
    ],
)
def test_mistakes_end_with_code_2_and_say_what_is_wrong(words: list[str], message: str) -> None:
    result = omni(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_all_mistakes_are_told_at_once() -> None:
    result = omni("serve", "demo", "--port", "x", "--workers", "0", OMNI_BOOT="never")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 3


def test_a_dry_run_prints_what_config_prints() -> None:
    words = ("demo", "--port", "9000", "--max-model-len", "1k")
    dry, config = omni("serve", *words, "--dry-run"), omni("config", *words)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout == config.stdout
    assert "# stages:\n#   request -> [0 text: llm" in dry.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    assert "_OMNI_APP_COMPLETE" in omni("completion", shell).stdout


def test_completion_of_flags_and_choices() -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        variables = {"_OMNI_APP_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        return [answer.partition(",")[2] for answer in omni(**variables).stdout.split()]

    assert complete("omni-app serve demo --max-num-")[:2] == ["--max-num-seqs", "--max-num-batched-tokens"]
    assert complete("omni-app serve demo --boot b") == ["blocking", "background"]
    assert complete("omni-app serve demo --h11-max-inc") == [], "it is refused"
    assert {"serve", "headless", "config"} <= set(complete("omni-app "))


def test_env() -> None:
    result = omni("env", OMNI_PORT="9000")
    assert result.returncode == 0
    assert "OMNI_PORT=9000" in result.stdout


def test_an_old_deploy_file_is_converted(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("stage_args: [{stage_id: 0, runtime: {devices: '0'}}]")
    result = omni("config", "--convert", "old.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout.splitlines()[-3:]) == (0, ["stages:", "- stage_id: 0", "  devices: '0'"])


def test_the_old_way_of_typing_means_the_same(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("stages: [{stage_id: 0, max_num_seqs: 4}]")
    words = ["--omni", "--port", "8091", "--api_server_count=2", "--deploy-config", str(file), "--no-enforce-eager"]
    result = omni("config", *words[1:], "--stage-overrides", '{"0": {"seed": 7}}', "--json", "--model", "demo")
    settings = json.loads(result.stdout)["settings"]
    assert settings["server"]["workers"] == 2
    arguments = settings["stages"][0]["engine_args"]
    assert (arguments["max_num_seqs"], arguments["seed"], arguments["enforce_eager"]) == (4, 7, False)


def test_the_first_argument_is_stronger_than_the_model_flag() -> None:
    result = omni("config", "demo", "--model", "/other", "--json")
    assert json.loads(result.stdout)["settings"]["model"] == "demo"


def test_config_prints_origins() -> None:
    result = omni("config", "demo", OMNI_PORT="9000")
    assert result.returncode == 0
    assert re.search(r"^  port: 9000 +# env OMNI_PORT$", result.stdout, re.MULTILINE)


def test_version() -> None:
    assert re.fullmatch(r"omni-app \d+\.\d+\.\d+ \(Python 3\.\d+\.\d+\)\n", omni("version").stdout)


def test_a_port_in_use_is_refused(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        result = omni("serve", "stub", "--port", str(port))
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}: address already in use" in result.stderr


class Serving:
    """A running `omni-app serve` with what it has printed so far."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=environment(),
        )
        self.lines: list[str] = []
        self._watchdog = threading.Timer(90, self.process.kill)
        self._watchdog.start()

    def read_until(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.strip().startswith(start):
                return line.strip()
        raise AssertionError("\n".join(["the server ended:", *self.lines]))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        """Wait for the end; the exit code."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.lines += self.process.communicate()[0].splitlines()
        self._watchdog.cancel()
        return self.process.returncode


@pytest.fixture
def serving(hostile_directory: Path, port: int) -> Iterator[Serving]:
    server = Serving("stub", "--port", str(port), "--workers", "2", cwd=hostile_directory)
    yield server
    server.stop()


def test_serve_tells_its_stages_and_a_curl_line_that_works(serving: Serving, port: int) -> None:
    words = shlex.split(serving.read_until("curl "))
    told = "\n".join(serving.lines)
    assert f"Ready: http://127.0.0.1:{port}" in told
    assert re.search(r"stage 0 \(stub/0\): loading stub", told)
    assert "POST /v1/chat/completions" in told
    request = urllib.request.Request(
        words[1], words[words.index("-d") + 1].encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer = json.load(response)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert serving.stop() == 0


def test_a_failed_start_ends_the_command(tmp_path: Path, port: int) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    overrides = json.dumps({"0": {"engine_args": {"no_such_argument": 1}}})
    server = Serving(str(tmp_path), "--port", str(port), "--stage-overrides", overrides, cwd=tmp_path)
    code = server.end()
    assert code == 1
    assert "no_such_argument" in "\n".join(server.lines)
