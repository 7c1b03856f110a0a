"""The rules by which vllm-omni refuses a command line, by their number there, and what becomes of each here."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import cli

REFUSED = [
    (1, "headless demo --stage-id 0", "--omni-master-port is missing"),
    (1, "serve demo --headless --stage-id 0 -oma 127.0.0.1", "--omni-master-port is missing"),
    (2, "serve --omni --deploy-config demo.yaml", "no model"),
    (2, "serve --model ''", "no model"),
    (3, "serve demo -ora 10.0.0.1", "--omni-replica-address belongs to `omni-app headless`"),
    (4, "serve demo --api-server-count 0", "flag --workers: must be at least 1, got 0"),
    (5, "serve demo --headless --stage-id 0 -omp 1 -asc 1", "exclude each other"),
    (6, "serve demo --api-server-count 2 --stage-id 0", "--omni-master-port is missing: where stages 1 ("),
    (8, "serve demo --worker-backend ray", "give --omni-master-address and --omni-master-port, where they reach"),
    (10, "serve demo --enable-elastic-ep", "one replica is one engine here"),
    (13, "headless demo --stage-id 0 -omp 1 --omni-dp-size-local 0", "must be at least 1, got 0"),
    (14, "serve demo --omni-dp-size-local 2", "--omni-dp-size-local is for the stage of --stage-id"),
    (15, "serve demo --data-parallel-address 10.0.0.1", "run `omni-app headless` on each of them"),
    (15, "serve demo --data-parallel-backend ray", "run `omni-app headless` on each of them"),
    (16, "serve PICTURES --lora-backend distill", "--lora-backend needs --lora-path"),
    (
        18,
        "serve demo --omni-lb-policy best",
        "expected one of random, round-robin, least-queue-length, session-affinity; got 'best'",
    ),
    (19, "serve demo --omni-heartbeat-timeout 0", "must be at least 1, got 0"),
    (19, "serve demo --omni-heartbeat-timeout nan", "expected a number, got 'nan'"),
    (21, "serve demo --enable-auto-tool-choice", "--enable-auto-tool-choice needs --tool-call-parser"),
]

ACCEPTED = [
    (6, "demo --api-server-count 2 --omni-master-address 127.0.0.1 --omni-master-port 8092"),
    (9, "demo --workers 2 --enable-fault-tolerance"),
    (11, "demo --workers 2 --enable-sleep-mode"),
    (12, "demo --workers 2 --enable-lora"),
    (15, "demo --data-parallel-size 2 --enable-expert-parallel"),
    (17, "PICTURES --lora-path a b"),
    (20, "PICTURES --workers 2"),
]
"""What is refused there, and works here: workers have no part in it, and adapters are blended."""


def words(line: str, directory: Path) -> list[str]:
    """The words of a command line; PICTURES is the directory of a diffusion model, '' an empty word."""
    (directory / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    return ["" if word == "''" else word.replace("PICTURES", str(directory)) for word in line.split()]


@pytest.mark.parametrize(("rule", "line", "message"), REFUSED)
def test_rules_that_hold(rule: int, line: str, message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, words(line, tmp_path), env={"OMNI_MODEL": ""})
    assert result.exit_code == 2, rule
    assert message in result.stderr


@pytest.mark.parametrize(("rule", "line"), ACCEPTED)
def test_rules_that_are_lifted(rule: int, line: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["serve", *words(line, tmp_path), "--dry-run"], env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    )
    assert (result.exit_code, result.stderr) == (0, ""), rule


def test_every_rule_has_its_case() -> None:
    named = {rule for rule, *_ in (*REFUSED, *ACCEPTED)}
    together = {7: 14}  # two halves of one rule: how many replicas a process starts
    assert named | together.keys() == set(range(1, 22))
