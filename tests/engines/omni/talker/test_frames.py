"""Frames by position, along steps as vLLM's scheduler describes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from app.engines.omni.talker.frames import FRAMES, Frames

CPU = torch.device("cpu")


@pytest.fixture
def frames() -> Frames:
    return Frames(CPU)


def new(name: str, prompt: int, computed: int = 0, **sampling: Any) -> NewRequestData:
    """A request of ours, or one that vLLM makes itself: with extra_args=None."""
    parameters = SamplingParams(**({"temperature": 0, "extra_args": {FRAMES: {"key": 1, "seed": 2}}} | sampling))
    return NewRequestData(
        req_id=name,
        prompt_token_ids=[0] * prompt,
        mm_features=[],
        sampling_params=parameters,
        pooling_params=None,
        block_ids=([],),
        num_computed_tokens=computed,
        lora_request=None,
    )


def step(counts: dict[str, int], *fresh: NewRequestData, finished: Collection[str] = (), **cached: int) -> Any:
    """So many positions of each; `cached` are those that the worker knows, and how many they have behind them."""
    made = SchedulerOutput.make_empty()
    made.scheduled_new_reqs = list(fresh)
    known = CachedRequestData.make_empty()
    known.req_ids, known.num_computed_tokens = list(cached), list(cached.values())
    made.scheduled_cached_reqs = known
    made.num_scheduled_tokens = counts
    made.finished_req_ids = set(finished)
    return made


def say(frames: Frames, name: str, frame: list[int]) -> None:
    frames.add([name], [frame])


def test_a_position_hears_the_frame_before_it_wherever_its_row_lies(frames: Frames) -> None:
    frames.begin_step(step({"a": 3, "b": 2}, new("a", 3), new("b", 2)))
    assert frames.heard(["a", "b"]) == ([], [])
    frames.add(["a", "b"], [[1, 2], [3, 4]])
    frames.begin_step(step({"c": 4, "a": 1, "b": 1}, new("c", 4), a=3, b=2))
    assert frames.heard(["b", "c", "a"]) == ([0, 5], [[3, 4], [1, 2]])


def test_a_prompt_in_several_steps_hears_nothing(frames: Frames) -> None:
    frames.begin_step(step({"a": 2}, new("a", 5)))
    frames.begin_step(step({"a": 3}, a=2))
    assert frames.heard(["a"]) == ([], [])


def test_what_was_preempted_hears_all_its_frames_again(frames: Frames) -> None:
    frames.begin_step(step({"a": 2}, new("a", 2)))
    say(frames, "a", [1, 1])
    frames.begin_step(step({"a": 1}, a=2))
    say(frames, "a", [2, 2])
    frames.begin_step(step({"a": 4}, a=0))
    assert frames.heard(["a"]) == ([2, 3], [[1, 1], [2, 2]])
    # vLLM's second runner is told of it as of a new one.
    frames.begin_step(step({"a": 4}, new("a", 4)))
    assert frames.heard(["a"]) == ([2, 3], [[1, 1], [2, 2]])


def test_a_sessions_next_chunk_goes_on_where_the_last_one_ended(frames: Frames) -> None:
    frames.begin_step(step({"a": 2}, new("a", 2)))
    say(frames, "a", [1, 1])
    frames.begin_step(step({"a": 1}, new("a", 3, computed=2)))
    assert frames.heard(["a"]) == ([0], [[1, 1]])


def test_what_is_sampled_once_more_takes_the_place_of_what_it_was(frames: Frames) -> None:
    frames.begin_step(step({"a": 2}, new("a", 2)))
    say(frames, "a", [1, 1])
    say(frames, "a", [2, 2])
    frames.begin_step(step({"a": 1}, a=2))
    assert frames.heard(["a"]) == ([0], [[2, 2]])


def test_nothing_is_left_of_requests_that_have_ended(frames: Frames) -> None:
    frames.begin_step(step({"a": 2, "b": 2}, new("a", 2), new("b", 2)))
    frames.begin_step(step({"b": 1}, finished={"a"}, b=2))
    assert ("a" in frames, "b" in frames) == (False, True)
    frames.begin_step(step({}, finished={"b"}))
    assert len(frames) == 0


def test_requests_that_are_vllms_own_have_no_frames(frames: Frames) -> None:
    frames.begin_step(step({"warmup": 2, "a": 2}, new("warmup", 2, extra_args=None), new("a", 2)))
    say(frames, "a", [1, 1])
    frames.begin_step(step({"warmup": 1, "a": 1}, warmup=2, a=2))
    assert "warmup" not in frames
    assert frames.heard(["warmup", "a"]) == ([1], [[1, 1]])


def test_who_draws_and_what(frames: Frames) -> None:
    """By a request's own seed, but not the numbers that vLLM draws from it; without one by what it was given."""
    frames.begin_step(
        step(
            dict.fromkeys("abcd", 1),
            new("a", 1),
            new("b", 1, temperature=1.0, seed=7),
            new("c", 1, temperature=1.0, seed=7),
            new("d", 1, temperature=1.0),
        )
    )
    generators = [voice.generator for voice in frames.voices("abcd")]
    assert generators[0] is None
    drawn = [torch.rand(2, generator=generator).tolist() for generator in generators[1:]]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != torch.rand(2, generator=torch.Generator().manual_seed(7)).tolist()
