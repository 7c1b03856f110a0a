"""Which files of a hub repository are downloaded: those that the engine reads, in one format and one precision."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath

_OTHER_ENGINES = re.compile(r"original/.*|.*\.(pth|gguf|onnx|onnx_data|msgpack|h5|ot|tflite)")
_SPEAKERS = "spk_dict.pt"
"""What Qwen2.5-Omni knows of its voices; no weights, whatever its form."""
_NO_PARTS = re.compile(r".*\.(ckpt|png|jpe?g|webp|gif|mp4|wav)")
"""What lies in repositories of diffusion models for people to look at, or as the whole model once more."""
_WEIGHTS = re.compile(
    r"[^.]+?(-\d+-of-\d+)?(\.(?P<variant>\w+?))?(-\d+-of-\d+)?\.(?P<form>safetensors|bin|pt)", re.ASCII
)
"""model.safetensors, model.fp16.safetensors, and parts: model.fp16-00001-of-00002.safetensors, or the number first."""


def language_model_files(files: Iterable[str]) -> list[str]:
    """What vLLM and transformers read: of weights in several forms only the best of these."""
    files = [name for name in files if not _OTHER_ENGINES.fullmatch(name)]
    forms = (".safetensors", ".bin", ".pt")
    best = next((form for form in forms if any(name.endswith(form) for name in files)), "")
    return [name for name in files if name.endswith((best, _SPEAKERS)) or not name.endswith(forms)]


def diffusion_files(files: Iterable[str], components: Collection[str], variant: str = "") -> list[str]:
    """What diffusers reads: the weights of each component once, in `variant` where it has that ("": in none).

    `components` are the folders that model_index.json names; without any (a modular pipeline) all folders count.
    """
    folders: dict[str, list[str]] = {}
    for name in files:
        if not (_OTHER_ENGINES.fullmatch(name) or _NO_PARTS.fullmatch(name)):
            folders.setdefault(str(PurePosixPath(name).parent), []).append(name)
    chosen: list[str] = []
    for folder, names in folders.items():
        if folder == ".":  # weights here are the whole model once more, in one file
            chosen += (name for name in names if not (components and _WEIGHTS.fullmatch(name)))
        elif not components or PurePosixPath(folder).parts[0] in components:
            chosen += _one_of_each(names, variant)
    return chosen


def _one_of_each(files: list[str], variant: str) -> Iterator[str]:
    """The files of one folder: its weights in the best form that it has, and everything else."""
    matches = {name: _WEIGHTS.fullmatch(PurePosixPath(name).name) for name in files}
    kinds = {name: (match["variant"] or "", match["form"]) for name, match in matches.items() if match}
    best = max(
        kinds.values(), key=lambda kind: (kind[0] == variant, not kind[0], kind[1] == "safetensors"), default=None
    )
    return (name for name in files if kinds.get(name, best) == best)
