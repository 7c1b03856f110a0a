"""One replica of the tests' tiny model on two nodes of this host, tensor parallel over Gloo, and in two engines.

`python -m bench.nodes`. What both generate has to be what one rank generates; then the first node ends, and
the other one has to end with it. Takes about two minutes on two cores: too long for the tests.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from app.cluster.local import LocalReplica
from app.engines.llm.engine import LlmEngine
from app.engines.spec import ReplicaSpec
from app.settings.schema import StageConfig
from tests.clusters import free_port
from tests.tiny import tiny_qwen3

_LOAD_S, _ANSWER_S, _END_S = 300.0, 60.0, 30.0
_ARGUMENTS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
}


def _stage(**more: Any) -> StageConfig:
    arguments = _ARGUMENTS | more
    return StageConfig(
        stage_id=0, name="llm", kind="llm", model=str(tiny_qwen3()), devices="cpu", engine_args=arguments
    )


def _further(**more: Any) -> LocalReplica:
    spec = ReplicaSpec(
        stage=_stage(**more, node_rank=1),
        replica_id=-1,
        registry="",
        bind="",
        token="",
        served_model_names=["tiny"],
        shutdown_timeout=1,
        slow_client_timeout=1,
        parent_pid=os.getpid(),
    )
    return LocalReplica(spec)


async def _generate(name: str, **more: Any) -> list[list[int]]:
    """What four equal requests generate."""
    from vllm import SamplingParams

    engine, began = LlmEngine(_stage(**more), ["tiny"]), time.monotonic()
    try:
        await asyncio.wait_for(engine.start(), _LOAD_S)
        up = time.monotonic()

        async def one(number: int) -> list[int]:
            frontend, tokens = engine._process.frontend, []
            assert frontend is not None
            greedy = SamplingParams(max_tokens=16, temperature=0)
            async for output in frontend.generate({"prompt_token_ids": [5, 6, 7]}, greedy, str(number)):
                tokens = list(output.outputs[0].token_ids)
            return tokens

        answers = await asyncio.wait_for(asyncio.gather(*map(one, range(4))), _ANSWER_S)
        print(f"{name}: loaded in {up - began:.0f} s, answered in {time.monotonic() - up:.1f} s", flush=True)
        return list(answers)
    finally:
        await engine.stop()


async def main() -> int:
    """0 if all is right."""
    alone = await _generate("one rank")
    engines = await _generate("data_parallel_size 2", data_parallel_size=2)
    meeting = {"tensor_parallel_size": 2, "nnodes": 2, "master_addr": "127.0.0.1", "master_port": free_port()}
    further = _further(**meeting)
    await further.spawn()
    try:
        nodes = await _generate("two nodes", **meeting)
        ended = time.monotonic()
        code = await asyncio.wait_for(further.wait(), _END_S)
        print(f"the further node ended {time.monotonic() - ended:.1f} s after the first one, exit code {code}")
    finally:
        await further.stop(1)
    right = alone == engines == nodes
    print("all generate the same" if right else f"one rank {alone}, two engines {engines}, two nodes {nodes}")
    return 0 if right and code == 1 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
