"""The file of a LoRA adapter, from what names it."""

from __future__ import annotations

from pathlib import Path

_KNOWN = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors")


def find_weights(path: Path) -> Path:
    """The safetensors file at `path`: itself, or that of a directory. Pickled weights are never read.

    Raises:
        ValueError: there is none, or a directory has several and none has a usual name.
    """
    if path.is_file():
        if path.suffix != ".safetensors":
            raise ValueError(f"{path.name} is no safetensors file, which LoRA adapters have to be")
        return path
    if not path.is_dir():
        raise ValueError(f"there is no LoRA adapter at {path}")
    files = sorted(path.glob("*.safetensors"))
    for name in _KNOWN:
        if path / name in files:
            return path / name
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ValueError(f"{path} must have {' or '.join(_KNOWN)}, or one safetensors file; it has {found}")
    return files[0]


def adapter_name(file: Path) -> str:
    """A name for the adapter in `file`: that of the file, or of its directory where all files are named alike."""
    return file.parent.name if file.name in _KNOWN else file.stem
