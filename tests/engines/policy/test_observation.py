"""Which parts of an observation are pictures, which are the state, and what is neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.engines.base import EngineError
from app.engines.policy.arrays import pack
from app.engines.policy.observation import Observation, Reset, read_observation
from app.engines.policy.options import PolicySampling

PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
MAX_PIXELS = 1000


def read(**given: Any) -> Observation:
    found = read_observation(pack(given), MAX_PIXELS)
    assert isinstance(found, Observation)
    return found


def test_an_observation_of_libero() -> None:
    found = read_observation(
        pack(
            {
                "observation/image": PICTURE,
                "observation/wrist_image": PICTURE[::-1].copy(),
                "observation/state": np.arange(8.0),
                "prompt": "pick up the red block",
            }
        ),
        MAX_PIXELS,
    )
    assert isinstance(found, Observation)
    np.testing.assert_array_equal(found.pictures, [PICTURE, PICTURE[::-1]])
    np.testing.assert_array_equal(found.state, np.arange(8))
    assert found.state.dtype == np.float32
    assert (found.prompt, found.sampling) == ("pick up the red block", PolicySampling())


def test_states_are_joined_in_their_order_and_mappings_are_nested() -> None:
    """As DROID and ALOHA send them: several keys for the state, pictures with their channels first."""
    found = read(
        observation={"joint_position": np.float64([1, 2]), "gripper_position": np.float32([3])},
        images={"cam_high": np.moveaxis(PICTURE, -1, 0)},
        speed=4,
        contacts=[True, False],
    )
    assert found.state.tolist() == [1, 2, 3, 4, 1, 0]
    np.testing.assert_array_equal(found.pictures, [PICTURE])
    assert found.prompt == ""


def test_floats_are_pictures_too() -> None:
    np.testing.assert_array_equal(read(image=PICTURE / np.float32(255)).pictures, [PICTURE])


def test_what_is_said_beside_the_observation() -> None:
    found = read(image=PICTURE, endpoint="infer", session_id="s", seed=3, sampling_params={"num_inference_steps": 5})
    assert (found.sampling, found.state.size) == (PolicySampling(5, 3), 0)
    assert read(image=PICTURE, seed=3, sampling_params={"seed": 4}).sampling.seed == 4


def test_reset() -> None:
    assert isinstance(read_observation(pack({"endpoint": "reset", "session_id": "s"}), MAX_PIXELS), Reset)


@pytest.mark.parametrize(
    ("given", "param", "told"),
    [
        ({"state": np.zeros(3)}, None, "no picture"),
        ({}, None, "no picture"),
        ({"image": PICTURE, "state": np.array([np.nan])}, None, "not finite"),
        ({"image": PICTURE, "state": np.array([1e300])}, None, "not finite"),
        ({"image": PICTURE.astype(np.int32)}, "image", "send uint8"),
        ({"image": PICTURE.astype(np.float32)}, "image", "from 0 to 1"),
        ({"image": np.full((2, 2, 3), np.nan, np.float32)}, "image", "from 0 to 1"),
        ({"image": PICTURE[..., 0]}, "image", "(height, width, 3)"),
        ({"image": PICTURE[None]}, "image", "(height, width, 3)"),
        ({"image": PICTURE[:0]}, "image", "(height, width, 3)"),
        ({"image": np.zeros((50, 50, 3), np.uint8)}, "image", "more than 1000 pixels"),
        ({"a": {"b": "words"}, "image": PICTURE}, "a/b", "neither an array nor a number"),
        ({"a": [[1], [2, 3]], "image": PICTURE}, "a", "neither an array nor a number"),
        ({"a": None, "image": PICTURE}, "a", "neither an array nor a number"),
        ({"a": 2**63, "b": "x", "image": PICTURE}, "b", "neither an array nor a number"),
        ({"image": PICTURE, "prompt": 3}, "prompt", "must be text"),
        ({"image": PICTURE, "seed": -1}, "sampling_params", "`int` >= 0"),
        ({"image": PICTURE, "sampling_params": [1]}, "sampling_params", "must be a mapping"),
        ({"image": PICTURE, "sampling_params": {"num_inference_steps": 0}}, "sampling_params", ">= 1"),
        ({"image": PICTURE, "sampling_params": {"temperature": 1}}, "sampling_params", "temperature"),
        ({"endpoint": "stop"}, "endpoint", "infer or reset"),
    ],
)
def test_what_cannot_be_observed(given: dict[str, Any], param: str | None, told: str) -> None:
    with pytest.raises(EngineError) as caught:
        read_observation(pack(given), MAX_PIXELS)
    failed = caught.value.failed
    assert (failed.status, failed.param) == (400, param)
    assert told in failed.message


@pytest.mark.parametrize("data", [b"", b"\xc1", pack([1, 2])])
def test_what_is_no_observation(data: bytes) -> None:
    with pytest.raises(EngineError, match="the observation"):
        read_observation(data, MAX_PIXELS)
