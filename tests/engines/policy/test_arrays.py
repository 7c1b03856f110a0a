"""Arrays in msgpack, against OpenPI's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from openpi_client import msgpack_numpy

from app.engines.policy.arrays import pack, unpack

ARRAYS = (
    np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    np.linspace(-1, 1, 7, dtype=np.float32),
    np.array([[1.5, -2.5]], dtype=">f8"),
    np.array(3, dtype=np.int64),
    np.zeros((0, 3), np.float16),
    np.array([True, False]),
)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_both_ways_as_openpi_does(array: np.ndarray[Any, Any]) -> None:
    read = unpack(msgpack_numpy.packb({"a": {"b": array}}))["a"]["b"]
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(msgpack_numpy.unpackb(pack({"a": array}))["a"], array)


def test_numbers_of_numpy() -> None:
    value = unpack(msgpack_numpy.packb({"x": np.float32(0.5)}))["x"]
    assert (value, type(value)) == (0.5, np.float32)
    assert msgpack_numpy.unpackb(pack({"x": np.int16(-3)})) == {"x": -3}


@pytest.mark.parametrize("key", [str, str.encode])
def test_the_notation_of_msgpack_numpy(key: Any) -> None:
    array = ARRAYS[1]
    written = {key("nd"): True, key("type"): "<f4", key("kind"): b"", key("shape"): [7], key("data"): array.tobytes()}
    np.testing.assert_array_equal(unpack(msgpack.packb({"a": written}))["a"], array)
    number = {key("nd"): False, key("type"): "<f4", key("data"): array[:1].tobytes()}
    assert unpack(msgpack.packb(number)) == -1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({b"dtype": "|O"}, "dtype"),
        ({b"dtype": "|V4"}, "dtype"),
        ({b"dtype": "<U4"}, "dtype"),
        ({b"dtype": "no such"}, "dtype"),
        ({b"dtype": None}, "dtype"),
        ({b"dtype": 7}, "dtype"),
        ({b"shape": [8]}, "has other data"),
        ({b"shape": [-1]}, "shape"),
        ({b"shape": [2**40]}, "has other data"),
        ({b"shape": "7"}, "shape"),
        ({b"shape": None}, "shape"),
        ({b"data": "text"}, "data must be bytes"),
        ({b"data": b"12345"}, "has other data"),
    ],
)
def test_what_is_no_array(change: dict[bytes, Any], told: str) -> None:
    written = {b"__ndarray__": True, b"data": bytes(28), b"dtype": "<f4", b"shape": [7]}
    with pytest.raises(ValueError, match=told):
        unpack(msgpack.packb(written | change))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa1a", b"\x91" * 100_000, msgspec.json.encode({"a": 1})])
def test_what_is_no_msgpack(data: bytes) -> None:
    with pytest.raises(ValueError, match="no msgpack"):
        unpack(data)


def test_what_cannot_be_packed() -> None:
    with pytest.raises(TypeError, match=r"\w*Path has no place in msgpack"):
        pack({"y": Path()})
