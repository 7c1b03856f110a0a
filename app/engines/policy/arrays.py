"""Arrays of NumPy in msgpack, in the two notations that robots' clients write: OpenPI's, and msgpack-numpy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

_NUMBERS = "biuf"
"""The kinds of dtypes that are read: booleans, integers, floats. Objects would be pickles."""


def pack(value: Any) -> bytes:
    """`value` as msgpack, its arrays in OpenPI's notation (https://github.com/Physical-Intelligence/openpi)."""
    return msgspec.msgpack.encode(value, enc_hook=_written)


def unpack(data: bytes | memoryview) -> Any:
    """The value in a msgpack document; its arrays read `data` where they lie, and cannot be written to.

    Raises:
        ValueError: it is no msgpack, or an array in it is not what it says.
    """
    try:
        return _read(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no msgpack: {error}") from None


def _written(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} has no place in msgpack")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_text(key): item for key, item in value.items()}
    if named.get("__ndarray__"):
        return _array(named, "dtype")
    if named.get("__npgeneric__"):
        return _dtype(named.get("dtype")).type(named.get("data"))
    if "nd" in named and "data" in named:
        return _array(named, "type") if named["nd"] else _array(named | {"shape": ()}, "type")[()]
    return {key: _read(item) for key, item in named.items()}


def _text(key: Any) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _array(given: Mapping[str, Any], dtype_key: str) -> np.ndarray[Any, np.dtype[Any]]:
    dtype, shape, data = _dtype(given.get(dtype_key)), given.get("shape"), given.get("data")
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"an array's shape must be a list of whole numbers, not {shape!r}")
    if not isinstance(data, bytes):
        raise ValueError("an array's data must be bytes")
    try:
        return np.frombuffer(data, dtype).reshape(shape)
    except ValueError as error:
        raise ValueError(f"an array of {dtype} with the shape {list(shape)} has other data: {error}") from None


def _dtype(given: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(given if isinstance(given, str) else _text(given) if isinstance(given, bytes) else None)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if not isinstance(given, str | bytes) or dtype.kind not in _NUMBERS or dtype.subdtype is not None:
        raise ValueError(f"an array's dtype must be one of numbers, such as '|u1' or '<f4', not {given!r}")
    return dtype
