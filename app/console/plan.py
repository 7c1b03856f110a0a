"""What `omni-app config` says about the stages beside their settings: how they are connected, what memory they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from app.demo.picture import demo_picture_model
from app.demo.text import DemoUnavailableError
from app.demo.voice import demo_voice
from app.settings import platforms
from app.settings.capabilities import summarize
from app.settings.devices import ranks
from app.settings.hub import Hub
from app.settings.inspection import Hints, inspect
from app.settings.schema import Settings, StageConfig
from app.settings.weights import Weights, read_components, read_weights


class Need(msgspec.Struct, frozen=True):
    """The weights of a stage, and their part on one device. Sizes in bytes; `note` says what is not known.

    `components` are the parts of a diffusion model, which one device holds together unless it may offload them.
    """

    stage_id: int
    parameters: int | None = None
    weights: int | None = None
    weights_on_one_device: int | None = None
    note: str = ""
    components: dict[str, int] = {}


_INNER = {"aligner": "is asked for the times of words"}
"""What stages are for that no edge leads to."""


def graph(settings: Settings) -> list[str]:
    """The stages as a small drawing, one line a stage, each under the one that feeds it."""
    return [line for stage in settings.stages if not stage.sources for line in _draw(stage, settings.stages, 0)]


def _draw(stage: StageConfig, stages: list[StageConfig], depth: int) -> Iterator[str]:
    start = (
        ("request -> " if stage.entry else "           ")
        if depth == 0
        else "           " + "   " * (depth - 1) + "└─> "
    )
    replicas = f" x {stage.num_replicas}" if stage.num_replicas > 1 else ""
    where = f" on {stage.devices}" if stage.devices else ""
    end = f" -> {', '.join(stage.outputs)}" if stage.outputs else ""
    yield f"{start}[{stage.stage_id} {stage.name}: {stage.kind}{replicas}{where}]{end}{_manner(stage)}"
    for follower in stages:
        if stage.stage_id in follower.sources:
            yield from _draw(follower, stages, depth + 1)


def _manner(stage: StageConfig) -> str:
    """How the stage takes its input, and whether requests may begin at it too."""
    if not stage.sources:
        return "" if stage.entry else f" ({_INNER.get(stage.model_stage, 'other stages ask it')})"
    if stage.prompt_template:
        return " (whose prompts its source writes)"
    how = "from the first piece on" if stage.async_chunk else "when its input is complete"
    return f" ({how}{'; requests begin here too' if stage.entry else ''})"


def needs(settings: Settings) -> list[Need]:
    """The memory of each stage's weights, as far as the model's files are on this machine."""
    return [_need(stage) for stage in settings.stages]


def _need(stage: StageConfig) -> Need:
    if stage.kind == "stub":
        return Need(stage.stage_id, 0, 0, 0)
    model = _files(stage)
    if model is None:
        return Need(stage.stage_id, note="not known before the model is on this machine")
    try:
        return _NEEDS[stage.kind](stage, model)
    except ValueError as error:
        return Need(stage.stage_id, note=str(error))


def _llm_need(stage: StageConfig, directory: Path) -> Need:
    prefix = _PARTS.get(stage.model_stage, "")
    weights = read_weights(directory, str(stage.engine_args.get("dtype") or "auto"), (prefix,))
    if weights is None:
        return Need(stage.stage_id, note=f"{directory} has no safetensors files")
    return Need(stage.stage_id, weights.parameters, weights.size, _share(stage, weights))


def _speech_need(stage: StageConfig, directory: Path) -> Need:
    """Weights that are no safetensors count as the files are."""
    weights = read_weights(directory, compute_dtype(stage))
    if weights is not None:
        return Need(stage.stage_id, weights.parameters, weights.size, weights.size)
    size = sum(file.stat().st_size for form in _OTHER_WEIGHTS for file in directory.glob(form))
    if not size:
        return Need(stage.stage_id, note=f"{directory} has no weights")
    return Need(stage.stage_id, 0, size, size)


def _undivided_need(stage: StageConfig, directory: Path, prefixes: tuple[str, ...] = ("",)) -> Need:
    """Of one that holds the weights whose names begin so, all of them on one device."""
    weights = read_weights(directory, compute_dtype(stage), prefixes)
    if weights is None:
        return Need(stage.stage_id, note=f"{directory} has no safetensors files")
    return Need(stage.stage_id, weights.parameters, weights.size, weights.size)


def _diffusion_need(stage: StageConfig, model: Path) -> Need:
    arguments = stage.engine_args
    variant = str((arguments.get("diffusers_load_kwargs") or {}).get("variant") or "")
    components = read_components(model, compute_dtype(stage), variant)
    if not components:
        return Need(stage.stage_id, note=f"{model} has no safetensors files")
    sizes = {name: weights.size for name, weights in components.items()}
    offloads = arguments.get("enable_cpu_offload") or arguments.get("enable_layerwise_offload")
    return Need(
        stage.stage_id,
        sum(weights.parameters for weights in components.values()),
        sum(sizes.values()),
        max(sizes.values()) if offloads else sum(sizes.values()),
        components=sizes,
    )


def compute_dtype(stage: StageConfig) -> str:
    """The number type that "auto" means for a stage without vLLM: a CPU computes in float32."""
    dtype = str(stage.engine_args.get("dtype") or "auto")
    on_cpu = stage.devices == "cpu" or platforms.current() == "cpu"
    return "float32" if dtype == "auto" and on_cpu else dtype


_PARTS = {"thinker": "thinker.", "talker": "talker."}
_VOCODER = ("token2wav.", "code2wav.")
"""How the names of weights begin in a checkpoint of all stages: of one by its model_stage, and of the vocoder."""
_OTHER_WEIGHTS = ("*.onnx", "*.bin", "*.pt")

_NEEDS: dict[str, Callable[[StageConfig, Path], Need]] = {
    "llm": _llm_need,
    "diffusion": _diffusion_need,
    "speech": _speech_need,
    "generation": partial(_undivided_need, prefixes=_VOCODER),
    "policy": _undivided_need,
}


def _share(stage: StageConfig, weights: Weights) -> int:
    whole = 1  # ranks that have all the weights of their layers
    for size in ("data_parallel_size", "prefill_context_parallel_size"):
        whole *= int(stage.engine_args.get(size) or 1)
    return -(-weights.size // (ranks(stage) // whole))


def _files(stage: StageConfig) -> Path | None:
    """Where the model is: a directory, or a single file of a diffusion stage; None if it is not here yet."""
    if stage.model == "demo":
        return _demo_files(stage)
    path = Path(stage.model).expanduser()
    if path.is_dir() or (path.is_file() and stage.kind == "diffusion"):
        return path
    arguments = stage.engine_args
    revision, cache = str(arguments.get("revision") or "main"), str(arguments.get("download_dir") or "")
    return Hub(os.environ, []).snapshot(stage.model, revision, cache)


def _demo_files(stage: StageConfig) -> Path | None:
    """The files of the demo's parts that are used as they ship."""
    try:
        return {"speech": demo_voice, "diffusion": demo_picture_model}[stage.kind]()
    except (KeyError, DemoUnavailableError):
        return None


def as_lines(settings: Settings) -> list[str]:
    """The drawing and the memory, for people."""
    lines = ["stages:", *(f"  {line}" for line in graph(settings))]
    several = len({stage.model for stage in settings.stages}) > 1
    lines += (f"  {line}" for stage in settings.stages if (line := _ability(stage, several)))
    lines.append("memory:")
    for need, stage in zip(needs(settings), settings.stages, strict=True):
        lines.append(f"  stage {stage.stage_id} ({stage.name}): {_in_words(need, stage)}")
    return lines


def _ability(stage: StageConfig, several: bool) -> str:
    """What the model of a stage is and can do, if it is on this machine; with its name where there are `several`."""
    said = [stage.model] if several else []
    within = stage.model == "demo" or stage.model_stage == "talker"
    about = None if within else _ABILITIES.get(stage.kind)
    if about is not None and (model := _files(stage)) is not None and (what := about(stage, model)):
        said.append(what)
    return f"stage {stage.stage_id} ({stage.name}): {': '.join(said)}" if said else ""


def _summary(stage: StageConfig, directory: Path) -> str:
    summary = summarize(directory)
    if summary is None:
        return ""
    if stage.kind == "speech":
        return f"{summary.architecture}, speaks"
    context = f", context {summary.context} tokens" if summary.context else ""
    return f"{summary.architecture}, takes {', '.join(summary.inputs)}{context}"


def _class(stage: StageConfig, model: Path) -> str:
    arguments = stage.engine_args
    config = str((arguments.get("diffusers_load_kwargs") or {}).get("config") or "")
    name = inspect(model, Hints(str(arguments.get("model_class_name") or ""), config)).class_name
    return f"{name}, makes {', '.join(stage.outputs)}" if name else ""


_ABILITIES = {"llm": _summary, "speech": _summary, "diffusion": _class}


def _in_words(need: Need, stage: StageConfig) -> str:
    if need.weights is None or need.parameters is None or need.weights_on_one_device is None:
        return need.note
    known = f" ({need.parameters / 1e6:,.1f} million parameters)" if need.parameters or not need.weights else ""
    text = f"weights {_bytes(need.weights)}{known}"
    if need.weights_on_one_device < need.weights:
        text += f", {_bytes(need.weights_on_one_device)} on each device"
    if stage.num_replicas > 1:
        text += f", {stage.num_replicas} times"
    if need.components:
        text += f": {', '.join(f'{name} {_bytes(size)}' for name, size in need.components.items())}"
    return f"{text}; {_cache(stage)}" if stage.kind == "llm" else text


def _cache(stage: StageConfig) -> str:
    arguments = stage.engine_args
    if size := arguments.get("kv_cache_memory_bytes"):
        return f"KV cache {_bytes(int(size))}"
    if share := arguments.get("gpu_memory_utilization"):
        return f"with the KV cache {share:.0%} of a device"
    return "the KV cache takes what vLLM's default leaves"


def _bytes(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"
