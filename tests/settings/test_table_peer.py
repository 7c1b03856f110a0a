"""Nobody who comes from vllm-omni or `vllm serve` meets an unknown flag."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.settings.flags import flags

SPELLINGS = {option for flag in flags() for option in flag.options} | {"--omni", "--headless"}

VLLM_OMNI = """
--omni --headless --api-server-count --model --tokenizer --trust-remote-code --task-type --stage-configs-path
--deploy-config --strategy-config --stage-overrides --async-chunk --stage-id --replica-id -oma --omni-master-address
-omp --omni-master-port -ora --omni-replica-address --omni-dp-size-local --omni-lb-policy --omni-heartbeat-timeout
--stage-init-timeout --init-timeout --shm-threshold-bytes --batch-timeout --log-file --worker-backend --ray-address
--log-stats --disable-log-stats --shutdown-timeout --enable-sleep-mode --num-gpus --enable-orch-monitor
--enable-ar-profiler --forced-aligner --forced-aligner-config --forced-aligner-device --model-class-name
--diffusion-load-format --diffusers-load-kwargs --diffusers-call-kwargs --custom-pipeline-args --usp --ulysses-degree
--ulysses-mode --ulysses-a2a-permute --ring --ring-degree --allgather-degree --cfg-parallel-size
--vae-patch-parallel-size --vae-parallel-mode --text-encoder-tp-size --use-hsdp --hsdp-shard-size
--hsdp-replicate-size --hsdp-weight-load-strategy --quantization-config --diffusion-quantization-config
--force-cutlass-fp8 --diffusion-attention-backend -dac --diffusion-attention-config --fastvideo-vsa-topk
--fa-deterministic --diffusion-kv-cache-dtype --diffusion-kv-cache-skip-steps --diffusion-kv-cache-skip-layers
--diffusion-compile-granularity --diffusion-compile-dynamic --enable-cuda-graph-decode --cache-backend --cache-config
--enable-cache-dit-summary --video-output-transport --step-execution --request-batch-max-wait-ms
--diffusion-streaming-output --vae-use-slicing --vae-use-tiling --vae-fast-path --disable-multithread-weight-load
--num-weight-load-threads --enable-broadcast-weight-load --enable-cpu-offload --enable-layerwise-offload
--diffusion-offload-config --enable-distributed-layerwise-offload --dlo-use-allgather --dlo-no-use-allgather
--dlo-resident-layers --host-weight-runtime-mode --host-weight-runtime-root --dlo-host-registration-limit-gib
--boundary-ratio --flow-shift --lora-path --lora-backend --lora-scale --auxiliary-text-encoder --no-guardrails
--enable-diffusion-pipeline-profiler --default-sampling-params --max-generated-image-size
--tts-max-instructions-length --robot-openpi-idle-timeout
"""


def test_every_flag_of_vllm_omni_has_a_row() -> None:
    assert set(VLLM_OMNI.split()) - SPELLINGS == set()


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """What the generator says about the installed vLLM."""
    path = Path(__file__).parents[2] / "scripts" / "vllm_arguments.py"
    result = subprocess.run([sys.executable, path, "--report"], stdout=subprocess.PIPE, timeout=300, check=True)
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_every_flag_of_vllm_serve_has_a_row(installed: dict[str, Any]) -> None:
    theirs = {option for option in installed["flags"] if not option.startswith("--no-")}
    assert theirs - SPELLINGS - {"-h", "--help"} == set()


def test_the_generated_table_is_current(installed: dict[str, Any]) -> None:
    assert installed["current"], "run scripts/vllm_arguments.py"
