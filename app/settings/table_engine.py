"""Rows of the flag table that vLLM consumes. No defaults: an argument that nobody gave is not passed on."""

from __future__ import annotations

from typing import Any

from app.settings.flags import Flag, Group
from app.settings.schema import MODEL_KINDS
from app.settings.values import ValueKind


def _llm(
    name: str,
    kind: ValueKind,
    help: str,
    *,
    group: Group = "engine",
    kinds: tuple[str, ...] = ("llm",),
    **more: Any,
) -> Flag:
    """A flag whose value becomes an argument of vLLM, under vLLM's name for it."""
    target = f"engine.{name.replace('-', '_')}"
    return Flag(name=name, kind=kind, group=group, target=target, kinds=kinds, help=help, **more)


def _both(name: str, kind: ValueKind, help: str, *, group: Group = "engine", **more: Any) -> Flag:
    """One that a diffusion stage takes as well."""
    return _llm(name, kind, help, group=group, kinds=("llm", "diffusion"), **more)


def _all(name: str, kind: ValueKind, help: str, **more: Any) -> Flag:
    """One that stages of every kind with a model take."""
    return _llm(name, kind, help, kinds=MODEL_KINDS, **more)


ENGINE = (
    _all("dtype", "str", "Number type of weights and activations: auto, bfloat16, float16, float32.", short=True),
    _llm(
        "max-model-len",
        "count",
        "Longest context in tokens, prompt and answer together; 32k and auto work. Default: what the model allows.",
        short=True,
    ),
    _llm(
        "gpu-memory-utilization",
        "float",
        "Share of a device's memory that a stage may take, above 0 and up to 1.",
        least=0.001,
        most=1,
        aliases=("--device-memory-utilization",),
        short=True,
    ),
    _llm(
        "tensor-parallel-size",
        "int",
        "GPUs over which each layer is split.",
        least=1,
        aliases=("-tp",),
        short=True,
        kinds=("llm", "diffusion"),
    ),
    _llm("pipeline-parallel-size", "int", "GPUs over which the layers are spread.", least=1, aliases=("-pp",)),
    _all(
        "max-num-seqs",
        "int",
        "Most sequences, picture requests, spoken sentences, or pieces of sound, computed at the same time.",
        least=1,
        short=True,
    ),
    _llm("max-num-batched-tokens", "count", "Most tokens computed in one engine step.", short=True),
    _both("enforce-eager", "bool", "Do not compile and do not capture CUDA graphs: starts faster, runs slower."),
    _llm("kv-cache-memory-bytes", "size", "Memory of the KV cache; replaces the share of the device.", metavar="SIZE"),
    _llm("kv-cache-dtype", "str", "Number type of the KV cache."),
    _llm("block-size", "int", "Tokens in one block of the KV cache.", least=1),
    _llm("enable-prefix-caching", "bool", "Keep computed prefixes for later requests."),
    _llm("enable-chunked-prefill", "bool", "Compute long prompts in pieces, between the steps of other requests."),
    _llm("async-scheduling", "bool", "Plan the next step while the current one runs."),
    _llm("distributed-executor-backend", "str", "How the engine runs its workers: uni, mp, ray."),
    _both("quantization", "str", "Quantization method of the weights.", aliases=("-q",)),
    _llm("load-format", "str", "How weights are read: auto, safetensors, dummy, ..."),
    _llm("seed", "int", "Seed of the engine's random numbers."),
    _all("trust-remote-code", "bool", "Run Python code that comes with the model. Only for models that you trust."),
    _llm("hf-overrides", "json", "Values that replace those of the model's config.json.", metavar="JSON"),
    _llm("generation-config", "str", "Where default sampling values come from: auto, vllm, or a directory."),
    _llm("override-generation-config", "json", "Default sampling values that replace the model's.", metavar="JSON"),
    _llm("skip-tokenizer-init", "bool", "Start without a tokenizer; requests carry token ids."),
    _llm("max-logprobs", "int", "Most log probabilities that a request may ask for."),
    _llm("compilation-config", "json", "Compilation settings of vLLM.", metavar="JSON", aliases=("-cc",)),
    _llm("speculative-config", "json", "Speculative decoding settings of vLLM.", metavar="JSON", aliases=("-sc",)),
    _llm("limit-mm-per-prompt", "json", 'Most media parts in a prompt, such as {"image": 2}.', metavar="JSON"),
    _llm("mm-processor-kwargs", "json", "Arguments of the model's media processor.", metavar="JSON"),
    _llm("mm-processor-cache-gb", "float", "Memory for processed media, in GiB.", least=0),
    _llm("cpu-offload-gb", "float", "Weights kept in host memory, in GiB per GPU.", least=0),
    _llm(
        "enable-sleep-mode",
        "bool",
        "Let administrators put stages to sleep: they give their memory back until they are woken.",
        kinds=("llm", "diffusion"),
    ),
    _llm("log-stats", "bool", "Log what a text stage does, every 10 seconds while it does something."),
    _llm("enable-ar-profiler", "bool", "Log how long each request of a text stage waited, read and wrote."),
)

FRONTEND = (
    _llm("tokenizer", "str", "Directory or hub id of another tokenizer.", group="frontend"),
    _llm("tokenizer-mode", "str", "Kind of tokenizer: auto, slow, mistral, ...", group="frontend"),
    _llm("chat-template", "str", "Jinja file, or template text, in place of the model's own.", group="frontend"),
    _llm(
        "chat-template-content-format",
        "str",
        "Form in which message contents reach the template.",
        group="frontend",
        choices=("auto", "string", "openai"),
    ),
    _llm("enable-auto-tool-choice", "bool", "Let the model decide to call tools.", group="frontend", short=True),
    _llm(
        "tool-call-parser",
        "str",
        "Reader of the model's tool calls: hermes, llama3_json, ...",
        group="frontend",
        short=True,
    ),
    _llm(
        "reasoning-parser",
        "str",
        "Reader of the model's reasoning: qwen3, deepseek_r1, ...",
        group="frontend",
        short=True,
    ),
    _llm("response-role", "str", "Role of the answers.", group="frontend"),
    _llm("enable-lora", "bool", "Serve LoRA adapters.", group="frontend"),
    _both(
        "max-loras",
        "int",
        "Most adapters in one batch; of a diffusion stage, most that stay loaded.",
        group="frontend",
        least=1,
    ),
    _llm("max-lora-rank", "int", "Highest rank of an adapter.", group="frontend", least=1),
    _llm("max-cpu-loras", "int", "Most adapters kept in host memory.", group="frontend", least=1),
    _llm(
        "lora-modules",
        "list",
        'Adapters served from the start: NAME=PATH, or {"name": ..., "path": ...}.',
        group="frontend",
        metavar="NAME=PATH...",
    ),
)

ENGINE_FLAGS = (*ENGINE, *FRONTEND)
