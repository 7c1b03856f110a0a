"""How vLLM is started: quickly and modestly on a CPU, untouched on an accelerator.

Measured on two cores: vLLM's defaults take three processes and 21 s to an engine on the CPU; one EngineCore forked from
the replica, which has imported everything already, takes 3 s.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cluster.rundir import SOCKET_PATH_LIMIT
from app.cluster.transport import local_address_towards
from app.engines.llm import plugin
from app.engines.threads import all_cores_but_one

if TYPE_CHECKING:
    from argparse import Namespace

    from vllm.config import VllmConfig

DEFAULT_PORT = 29501
"""vLLM's default of --master-port."""
_SOCKET_NAME = "/" + "0" * 36
"""vLLM names its sockets by a UUID."""
_LEAST_CACHE_BYTES = 512 << 20
_PARALLELISM = ("distributed_executor_backend", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_COMPILATION = ("enforce_eager", "compilation_config", "optimization_level")


def is_cpu_build() -> bool:
    """Whether the installed torch has no accelerator. Imports nothing: its answer decides what torch shall find."""
    return importlib.metadata.version("torch").endswith("+cpu")


class StartPlan:
    """What vLLM gets beside the user's arguments. Make it, and call `prepare`, before vLLM is imported.

    `log_level` "": what VLLM_LOGGING_LEVEL says, or warning. `scratch`: a directory for vLLM's sockets, or "".
    """

    def __init__(self, engine_args: dict[str, Any], log_level: str = "", scratch: str = "") -> None:
        self._log_level = log_level
        self._scratch = scratch
        self._cpu = is_cpu_build()
        self._address = _own_address(engine_args)
        self._one_process = self._cpu and not any(name in engine_args for name in _PARALLELISM)
        self._eager = self._cpu and not any(name in engine_args for name in _COMPILATION)
        self._sizes_cache = self._cpu and not {"kv_cache_memory_bytes", "gpu_memory_utilization"} & engine_args.keys()

    def prepare(self) -> None:
        """Set the environment that vLLM and torch read when they are imported. A variable that is set stays."""
        plugin.protect_children()
        if self._log_level:
            os.environ["VLLM_LOGGING_LEVEL"] = self._log_level.replace("trace", "debug").upper()
        for name, value in self._environment().items():
            os.environ.setdefault(name, value)

    def _environment(self) -> dict[str, str]:
        environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        if self._scratch and len(self._scratch) + len(_SOCKET_NAME) <= SOCKET_PATH_LIMIT:
            environment["VLLM_RPC_BASE_PATH"] = self._scratch  # a killed replica's sockets go with the run directory
        if self._address:
            environment["VLLM_HOST_IP"] = self._address  # else vLLM takes the route to the internet
        if not self._cpu:
            # As `vllm serve` does: a fork would inherit whatever the replica did to the device.
            return environment | {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        environment["OMP_NUM_THREADS"] = all_cores_but_one()
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # stages share the cores; pinning stacks them on the first
        if self._one_process:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # lets the EngineCore do the work itself on a CPU
        if self._eager:
            environment["TORCH_COMPILE_DISABLE"] = "1"  # a first request with logprobs would compile for up to 17 s
        return environment

    def defaults(self) -> dict[str, Any]:
        """Engine arguments for what the user left open."""
        chosen: dict[str, Any] = {}
        if self._one_process:
            chosen["distributed_executor_backend"] = "uni"
        if self._eager:
            chosen["enforce_eager"] = True
        return chosen

    def configure(
        self, args: Namespace, architectures: Sequence[str] | None = None, *, headless: bool = False
    ) -> VllmConfig:
        """vLLM's configuration, ready for AsyncLLM; checks the model's files.

        `architectures`: the names of the model's classes, None for those in its config.json or in hf_overrides.
        `headless`: for workers whose EngineCore runs on another host.

        Raises:
            Exception: whatever vLLM finds wrong with arguments or model.
        """
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext

        from app.engines.llm import kernels, seeds

        if self._cpu:
            args.enable_sleep_mode = False  # vLLM has no allocator for it there, and refuses it
            _import_model(_architectures(args) if architectures is None else architectures)
        engine_args = AsyncEngineArgs.from_cli_args(args)
        config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER, headless=headless)
        if self._sizes_cache and config.cache_config.kv_cache_memory_bytes is None:
            config.cache_config.kv_cache_memory_bytes = _modest_cache(config)
        if self._one_process:
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # create_engine_config has just set it to spawn
            if self._eager:
                kernels.install(config)
            seeds.install()
        return config


def _own_address(engine_args: dict[str, Any]) -> str:
    """Where the other hosts of the replica reach this one; "" if there are none.

    Raises:
        OSError: there is no route to the first one.
    """
    if int(engine_args.get("nnodes") or 1) == 1:
        return ""
    first, port = engine_args["master_addr"], int(engine_args.get("master_port") or DEFAULT_PORT)
    return local_address_towards(first, port) if engine_args.get("node_rank") else str(first)


def _architectures(args: Namespace) -> list[str]:
    if isinstance(args.hf_overrides, dict) and "architectures" in args.hf_overrides:
        return list(args.hf_overrides["architectures"])
    config_file = Path(args.model) / "config.json"
    return (json.loads(config_file.read_bytes()).get("architectures") or []) if config_file.exists() else []


def _import_model(architectures: Sequence[str]) -> None:
    """Import the model's class here: vLLM would import it in a process of its own (8 s, once for each architecture) to
    protect this one from initialising a GPU."""
    from vllm import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # some of the models are ours
    for name in architectures:
        if (lazy := ModelRegistry.models.get(name)) is not None:
            ModelRegistry.register_model(name, lazy.load_model_cls())


def _modest_cache(config: VllmConfig) -> int:
    """Bytes of KV cache: room for two prompts of full length, at least 512 MiB (vLLM would take 92 % of the memory)."""
    model, parallel = config.model_config, config.parallel_config
    heads, layers = model.get_num_kv_heads(parallel), model.get_num_layers(parallel)
    per_token = 2 * heads * model.get_head_size() * layers * model.dtype.itemsize
    return max(_LEAST_CACHE_BYTES, int(2 * per_token * model.max_model_len))
