"""How much memory a model's weights need, from the headers of its safetensors files; no weight is read."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from app.settings.inspection import read_json
from app.settings.snapshot import diffusion_files

_MOST_HEADER_BYTES = 100 << 20
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
_FLOATS = ("F64", "F32", "F16", "BF16")
_DTYPE_BITS = {"float32": 32, "float": 32, "bfloat16": 16, "float16": 16, "half": 16}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]


class Weights(msgspec.Struct, frozen=True):
    """Sums over all tensors; `size` in bytes, as the engine holds them in `dtype`."""

    parameters: int
    size: int


def read_weights(directory: Path, dtype: str = "auto", prefixes: tuple[str, ...] = ("",)) -> Weights | None:
    """The weights of a model whose names begin with one of `prefixes`; None where there are no safetensors files.

    Floating point tensors count in `dtype`, where that is one; "auto" is what the engines make of it: float32 becomes
    16 bits wide.

    Raises:
        ValueError: a file is broken; names it.
    """
    return _sum(directory.glob("**/*.safetensors"), dtype, prefixes)


def read_components(model: Path, dtype: str = "auto", variant: str = "") -> dict[str, Weights]:
    """The weights of a diffusion model by component, those in several formats once; of a single file under its name.

    `dtype` as in read_weights; a GGUF file counts as it is, and its parameters are not known (0).

    Raises:
        ValueError: a file is broken; names it.
    """
    found: dict[str, Weights | None]
    if model.suffix.lower() == ".gguf":
        return {model.name: Weights(0, model.stat().st_size)}
    if model.is_file():
        found = {model.name: _sum([model], dtype)} if model.suffix == ".safetensors" else {}
    else:
        index = read_json(model / "model_index.json")
        folders = [x for x in sorted(model.iterdir()) if x.is_dir() and (index is None or x.name in index)]
        found = {folder.name: _sum(_used(folder, variant), dtype) for folder in folders}
    return {name: weights for name, weights in found.items() if weights is not None}


def _used(folder: Path, variant: str) -> Iterator[Path]:
    files = [str(file.relative_to(folder.parent)) for file in folder.glob("*.safetensors")]
    return (folder.parent / name for name in diffusion_files(files, [], variant))


def _sum(files: Iterable[Path], dtype: str, prefixes: tuple[str, ...] = ("",)) -> Weights | None:
    parameters = bits = count = 0
    for file in sorted(files):
        count += 1
        for tensor in _tensors(file, prefixes):
            size = math.prod(tensor.shape)
            parameters += size
            bits += size * _width(tensor.dtype, dtype)
    return Weights(parameters, bits // 8) if count else None


def _width(stored: str, dtype: str) -> int:
    if stored in _FLOATS:
        return _DTYPE_BITS.get(dtype, min(_BITS[stored], 16))
    return _BITS.get(stored, 8)


def _tensors(file: Path, prefixes: tuple[str, ...]) -> Iterator[_Tensor]:
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
            if length > _MOST_HEADER_BYTES:
                raise ValueError(f"{file} is no safetensors file")
            header = msgspec.json.decode(content.read(length), type=dict[str, msgspec.Raw])
        for name, entry in header.items():
            if name != "__metadata__" and name.startswith(prefixes):
                yield msgspec.json.decode(entry, type=_Tensor)
    except (OSError, struct.error, msgspec.DecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
