"""What a robot sees and feels, as its client sends it: which of the keys are pictures, which are its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from app.engines.policy.arrays import unpack
from app.engines.policy.options import PolicySampling
from app.engines.refusal import refuse

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
State = np.ndarray[Any, np.dtype[np.float32]]

_TALK = ("prompt", "endpoint", "session_id", "seed", "sampling_params")
"""Keys that say something about the request, and are not observed."""
_CHANNELS = 3
_SAMPLING = ("num_inference_steps", "seed")


class Observation(msgspec.Struct, frozen=True):
    """`pictures` are (height, width, 3), one of each camera, and `state` (n,), both in the order of the keys that hold
    them. `sampling` is what the client has set.
    """

    prompt: str
    pictures: list[Pixels]
    state: State
    sampling: PolicySampling


class Reset(msgspec.Struct, frozen=True):
    """An episode begins: whatever was remembered of the last one has to be forgotten."""


def read_observation(data: bytes | memoryview, max_pixels: int) -> Observation | Reset:
    """The observation in a msgpack document.

    An array of three dimensions is the picture of a camera: uint8, or floats from 0 to 1; (height, width, 3) or (3,
    height, width). Numbers and arrays of them are parts of the state. Mappings may be nested.

    Raises:
        EngineError: 400, with the key that cannot be used.
    """
    try:
        given = unpack(data)
    except ValueError as error:
        refuse(f"the observation cannot be read: {error}", None)
    if not isinstance(given, dict):
        refuse("the observation must be a mapping", None)
    match given.get("endpoint", "infer"):
        case "reset":
            return Reset()
        case "infer":
            pass
        case other:
            refuse(f"endpoint must be infer or reset, not {other!r}", "endpoint")
    observed = _flat({name: value for name, value in given.items() if name not in _TALK})
    arrays = {key: _numbers(key, value) for key, value in observed}
    pictures = [_picture(key, array, max_pixels) for key, array in arrays.items() if array.ndim > 1]
    if not pictures:
        refuse("there is no picture in the observation: an array (height, width, 3) of each camera", None)
    state = _state([array for array in arrays.values() if array.ndim <= 1])
    return Observation(_prompt(given), pictures, state, _sampling(given))


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _numbers(key: str, value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        refuse(f"{key} is neither an array nor a number", key)
    return array


def _picture(key: str, array: np.ndarray[Any, np.dtype[Any]], max_pixels: int) -> Pixels:
    if array.ndim == _CHANNELS and array.shape[-1] != _CHANNELS and array.shape[0] == _CHANNELS:
        array = np.moveaxis(array, 0, -1)
    if array.ndim != _CHANNELS or array.shape[-1] != _CHANNELS or not array.size:
        refuse(f"{key} has the shape {list(array.shape)}; a picture has (height, width, 3)", key)
    if array.shape[0] * array.shape[1] > max_pixels:
        refuse(f"{key} has more than {max_pixels} pixels", key)
    if array.dtype.kind == "f":
        if not ((array >= 0) & (array <= 1)).all():
            refuse(f"{key} is a picture of floats, which must be from 0 to 1", key)
        return (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        refuse(f"{key} is a picture of {array.dtype}; send uint8, or floats from 0 to 1", key)
    return array


def _state(parts: list[np.ndarray[Any, np.dtype[Any]]]) -> State:
    with np.errstate(over="ignore"):  # what is too large for 32 bits becomes infinite
        state: State = np.concatenate([np.zeros(0), *map(np.atleast_1d, parts)]).astype(np.float32)
    if not np.isfinite(state).all():
        refuse("the state holds numbers that are not finite", None)
    return state


def _prompt(given: Mapping[str, Any]) -> str:
    prompt = given.get("prompt", "")
    if not isinstance(prompt, str):
        refuse("prompt must be text", "prompt")
    return prompt


def _sampling(given: Mapping[str, Any]) -> PolicySampling:
    """`seed` stands beside the observation or among the sampling parameters, which win."""
    asked = given.get("sampling_params") or {}
    if not isinstance(asked, dict):
        refuse("sampling_params must be a mapping", "sampling_params")
    values = ({"seed": given["seed"]} if given.get("seed") is not None else {}) | asked
    try:
        return msgspec.convert(values, PolicySampling)
    except msgspec.ValidationError as error:
        refuse(f"sampling_params: {error}", "sampling_params")
