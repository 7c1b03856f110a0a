"""How much memory a model's weights need, from the headers of its safetensors files; no weight is read."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

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


def read_weights(directory: Path, dtype: str = "auto") -> Weights | None:
    """The weights of a model; None where there are no safetensors files.

    Floating point tensors count in `dtype`, where that is one; "auto" is what the engines make of it: float32 becomes
    16 bits wide.

    Raises:
        ValueError: a file is broken; names it.
    """
    parameters = bits = 0
    files = sorted(directory.glob("**/*.safetensors"))
    for file in files:
        for tensor in _tensors(file):
            count = math.prod(tensor.shape)
            parameters += count
            bits += count * _width(tensor.dtype, dtype)
    return Weights(parameters, bits // 8) if files else None


def _width(stored: str, dtype: str) -> int:
    if stored in _FLOATS:
        return _DTYPE_BITS.get(dtype, min(_BITS[stored], 16))
    return _BITS.get(stored, 8)


def _tensors(file: Path) -> Iterator[_Tensor]:
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
            if length > _MOST_HEADER_BYTES:
                raise ValueError(f"{file} is no safetensors file")
            header = msgspec.json.decode(content.read(length), type=dict[str, msgspec.Raw])
        for name, entry in header.items():
            if name != "__metadata__":
                yield msgspec.json.decode(entry, type=_Tensor)
    except (OSError, struct.error, msgspec.DecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
