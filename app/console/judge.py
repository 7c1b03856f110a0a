"""What vLLM thinks of engine arguments, asked in a process of its own: importing it takes seconds."""

from __future__ import annotations

import os
import subprocess

import msgspec

from app.cluster.process import python_command
from app.settings.schema import Settings, StageConfig

_LIMIT_S = 300


def engine_problems(settings: Settings) -> list[str]:
    """The problems of all stages that run on vLLM; nothing is loaded."""
    stages = [_of_vllm(stage) for stage in settings.stages if stage.kind == "llm"]
    if not stages:
        return []
    question = {"stages": stages, "served_model_names": settings.served_model_names}
    answer = subprocess.run(
        python_command("app.engines.llm.check"),
        input=msgspec.json.encode(question),
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    if answer.returncode:
        reason = answer.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return [f"vLLM cannot be asked (exit code {answer.returncode}): {''.join(reason)}"]
    return answer.stdout.decode().splitlines()


def _of_vllm(stage: StageConfig) -> StageConfig:
    """A talker's sampling parameters are no defaults of vLLM's: its engine hands them on with each request."""
    return msgspec.structs.replace(stage, default_sampling_params={}) if stage.model_stage == "talker" else stage
