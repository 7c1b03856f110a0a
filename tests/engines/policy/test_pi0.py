"""pi0 acts as transformers' own processor and model do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from app.engines.base import EngineError
from app.engines.policy.observation import Observation
from app.engines.policy.options import PolicyOptions, PolicySampling
from app.engines.policy.pi0 import Pi0, load
from tests.tiny_policy import SIDE, STATISTICS

PROMPT = "pick up the red block"
CPU = PolicyOptions(device="cpu")


@pytest.fixture(scope="module")
def pi0(policy: Path) -> Pi0:
    return load(policy, CPU)


@pytest.fixture(scope="module")
def raw(raw_policy: Path) -> Pi0:
    return load(raw_policy, CPU)


def pictures(count: int) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    return list(np.random.default_rng(1).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8))


def seen(count: int = 2, **sampling: Any) -> Observation:
    state = np.float32([0.1, 0.2, 0.3, 0.4])
    return Observation(PROMPT, pictures(count), state, PolicySampling(**sampling))


def nothing() -> None:
    """A step that nobody counts."""


def of_transformers(directory: Path, observation: Observation, seed: int, steps: int) -> np.ndarray[Any, Any]:
    """The actions as a user of transformers would get them, with its processor."""
    pixels = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    pixels.image_seq_length = (SIDE // 14) ** 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    processor = transformers.PI0Processor(pixels, tokenizer, **STATISTICS, max_state_dim=8, chunk_size=6)
    model = transformers.PI0ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
    assert processor.image_token_id == model.config.vlm_config.image_token_id
    inputs = processor(
        images=[observation.pictures], text=observation.prompt, state=observation.state[None], return_tensors="pt"
    )
    # The processor pads texts to 48 places at the right, which the model is told not to look at.
    noise = torch.randn((1, 6, 8), generator=torch.Generator().manual_seed(seed))
    actions = model.sample_actions(**inputs, noise=noise, num_steps=steps)[0, :, :3].numpy()
    return actions * (np.float32(STATISTICS["actions_std"]) + 1e-8) + np.float32(STATISTICS["actions_mean"])


@pytest.mark.parametrize("cameras", [1, 2, 3])
def test_the_actions_are_those_of_transformers(pi0: Pi0, policy: Path, cameras: int) -> None:
    observation = seen(cameras, num_inference_steps=3)
    made = pi0.act(observation, 7, nothing)
    assert (made.shape, made.dtype) == ((6, 3), np.float32)
    np.testing.assert_allclose(made, of_transformers(policy, observation, 7, 3), atol=2e-5)


def test_seeds_and_steps(pi0: Pi0) -> None:
    first, again, other = (pi0.act(seen(), seed, nothing) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    counted: list[int] = []
    pi0.act(seen(num_inference_steps=9), 1, lambda: counted.append(1))
    assert len(counted) == 1 + 9


def test_every_part_of_an_observation_matters(pi0: Pi0) -> None:
    base = seen()
    changed = (
        Observation("put it down", base.pictures, base.state, base.sampling),
        Observation(PROMPT, base.pictures[::-1], base.state, base.sampling),
        Observation(PROMPT, base.pictures, base.state + 1, base.sampling),
    )
    first = pi0.act(base, 1, nothing)
    assert all(np.abs(pi0.act(other, 1, nothing) - first).max() > 1e-5 for other in changed)


def test_a_new_line_at_the_end_of_a_prompt_changes_nothing(pi0: Pi0) -> None:
    base = seen()
    same = Observation(f"{PROMPT}\n", base.pictures, base.state, base.sampling)
    np.testing.assert_array_equal(pi0.act(same, 1, nothing), pi0.act(base, 1, nothing))


def test_pictures_of_another_shape_have_black_bars(pi0: Pi0) -> None:
    pixels = pi0._pixels(np.full((20, 40, 3), 255, np.uint8))
    assert pixels.shape == (3, SIDE, SIDE)
    assert pixels[:, 7:21].min() == 1
    assert pixels[:, :7].max() == pixels[:, 21:].max() == -1


def test_what_is_raised_at_a_step_ends_the_call_and_not_the_next(pi0: Pi0) -> None:
    calls: list[int] = []

    def leave() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError

    with pytest.raises(KeyError):
        pi0.act(seen(), 1, leave)
    assert pi0.act(seen(), 1, nothing).shape == (6, 3)
    assert len(calls) == 3


def test_without_statistics_numbers_are_those_of_the_model(raw: Pi0) -> None:
    assert (raw.card.normalized, raw.card.action_dim, raw.card.state_dim) == (False, 8, 8)
    made = raw.act(seen(), 7, nothing)
    assert made.shape == (6, 8)
    raw.check(seen())


@pytest.mark.parametrize(
    ("which", "observation", "told"),
    [
        ("pi0", Observation(PROMPT, pictures(1), np.zeros(3, np.float32), PolicySampling()), "was trained with 4"),
        ("raw", Observation(PROMPT, pictures(1), np.zeros(9, np.float32), PolicySampling()), "takes 8 at most"),
        ("pi0", Observation("it " * 60, pictures(1), np.zeros(4, np.float32), PolicySampling()), "takes 64 at most"),
        ("pi0", Observation(PROMPT, pictures(20), np.zeros(4, np.float32), PolicySampling()), "takes 64 at most"),
    ],
)
def test_what_it_cannot_act_on(request: pytest.FixtureRequest, which: str, observation: Observation, told: str) -> None:
    with pytest.raises(EngineError, match=told) as caught:
        request.getfixturevalue(which).check(observation)
    assert caught.value.failed.status == 400


def test_steps_of_the_stage(policy: Path) -> None:
    counted: list[int] = []
    slow = load(policy, PolicyOptions(device="cpu", default_sampling_params={"num_inference_steps": 7}))
    slow.act(seen(), 1, lambda: counted.append(1))
    assert (slow.card.num_inference_steps, len(counted)) == (7, 1 + 7)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda given: given | {"state_std": [1.0]},
        lambda given: {key: value for key, value in given.items() if key.startswith("state")},
        lambda given: given | {"actions_mean": [0.0] * 9, "actions_std": [1.0] * 9},
        lambda given: given | {"state_mean": "zero"},
    ],
)
def test_statistics_that_do_not_fit(
    policy: Path, tmp_path: Path, break_it: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    directory = shutil.copytree(policy, tmp_path / "copy")
    (directory / "processor_config.json").write_text(json.dumps(break_it(dict(STATISTICS))))
    with pytest.raises(ValueError, match=r"processor_config\.json: "):
        load(directory, CPU)
