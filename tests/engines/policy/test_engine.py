"""A policy's stage: what it tells of itself, how it answers, what it refuses, and how work is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from app.engines.base import EngineError
from app.engines.policy.arrays import pack
from app.engines.policy.engine import PolicyEngine
from app.protocol.robot import PolicyCard
from app.settings.schema import MediaConfig
from tests.engines.policy.asking import PICTURE, Asked, ask, observation, stage
from tests.tiny_policy import SIDE

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def engine(policy: Path) -> AsyncIterator[PolicyEngine]:
    engine = PolicyEngine(stage(policy), MediaConfig(max_pixels=10_000))
    await engine.start()
    yield engine
    await engine.stop()


async def test_what_the_stage_tells_of_itself(policy: Path) -> None:
    engine = PolicyEngine(stage(policy, default_sampling_params={"num_inference_steps": 3}))
    with pytest.raises(EngineError, match="still loading"):
        await engine.run(Asked(observation()))
    told = await engine.start()
    await engine.stop()
    assert (told.tasks, told.input_modalities, told.output_modalities) == (["act"], ["text", "image"], ["action"])
    assert msgspec.json.decode(told.card, type=PolicyCard) == PolicyCard(
        family="pi0",
        action_horizon=6,
        action_dim=3,
        state_dim=4,
        image_size=SIDE,
        num_inference_steps=3,
        normalized=True,
    )


async def test_actions(engine: PolicyEngine) -> None:
    first, again = [await ask(engine, observation(seed=5)) for _ in range(2)]
    assert (first["actions"].shape, first["actions"].dtype) == ((6, 3), np.float32)
    np.testing.assert_array_equal(first["actions"], again["actions"])
    assert first["policy_timing"]["infer_ms"] > 0
    assert engine.load().steps >= 2 * 5


async def test_who_gives_no_seed_gets_another_one_each_time(engine: PolicyEngine) -> None:
    first, second = [await ask(engine, observation()) for _ in range(2)]
    assert np.abs(first["actions"] - second["actions"]).max() > 0.001


async def test_the_seed_of_the_stage(policy: Path) -> None:
    seeded = PolicyEngine(stage(policy, default_sampling_params={"seed": 5}))
    await seeded.start()
    first, second = [(await ask(seeded, observation()))["actions"] for _ in range(2)]
    asked = (await ask(seeded, observation(seed=6)))["actions"]
    await seeded.stop()
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - asked).max() > 0.001


async def test_reset_is_answered(engine: PolicyEngine) -> None:
    assert await ask(engine, pack({"endpoint": "reset"})) == {"status": "reset successful"}


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (observation(), "chat", "does not serve"),
        (b"\xc1", "act", "cannot be read"),
        (pack({"image": PICTURE, "state": np.zeros(3)}), "act", "was trained with 4"),
        (observation(image=np.zeros((101, 100, 3), np.uint8)), "act", "more than 10000 pixels"),
    ],
)
async def test_refusals(engine: PolicyEngine, body: bytes, kind: str, told: str) -> None:
    with pytest.raises(EngineError, match=told) as caught:
        await ask(engine, body, kind)
    assert caught.value.failed.status == 400


async def test_nothing_can_be_asked_beside(engine: PolicyEngine) -> None:
    with pytest.raises(EngineError) as caught:
        await engine.call("metrics", b"{}")
    assert caught.value.failed.status == 404


@pytest.fixture
def gate(engine: PolicyEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The policy waits at its first step until this is called."""
    opened, policy = threading.Event(), engine._service._policy  # type: ignore[union-attr]
    act = policy.act

    def gated(observation: Any, seed: int, step: Callable[[], None]) -> Any:
        assert opened.wait(20)
        return act(observation, seed, step)

    monkeypatch.setattr(policy, "act", gated)
    return opened.set


async def test_one_at_a_time_in_the_order_of_arrival(engine: PolicyEngine, gate: Callable[[], None]) -> None:
    ended: list[int] = []

    async def asking(number: int) -> None:
        await ask(engine, observation())
        ended.append(number)

    tasks = []
    for number in range(3):
        tasks.append(asyncio.create_task(asking(number)))
        async with asyncio.timeout(20):
            while engine.load().running + engine.load().waiting <= number:  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0.01)
    assert (engine.load().running, engine.load().waiting) == (1, 2)
    gate()
    await asyncio.gather(*tasks)
    assert ended == [0, 1, 2]
    assert (engine.load().running, engine.load().waiting) == (0, 0)


async def test_who_leaves_ends_the_work_at_its_next_step(engine: PolicyEngine, gate: Callable[[], None]) -> None:
    asked = asyncio.create_task(ask(engine, observation()))
    async with asyncio.timeout(20):
        while not engine.load().running:  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.01)
    steps = engine.load().steps
    asked.cancel()
    await asyncio.wait([asked])
    gate()
    await ask(engine, observation())
    assert engine.load().steps == steps + 1 + 1 + 4, "one step of the work that was left, five of the next"


async def test_a_full_device_is_told_and_the_next_is_served(
    engine: PolicyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine._service._policy, "act", _fail(MemoryError()))  # type: ignore[union-attr]
        with pytest.raises(EngineError, match="too little memory") as caught:
            await ask(engine, observation())
        assert (caught.value.failed.status, caught.value.failed.code) == (503, "out_of_memory")
        patch.setattr(engine._service._policy, "act", _fail(RuntimeError("broken")))  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="broken"):
            await ask(engine, observation())
    assert (await ask(engine, observation()))["actions"].shape == (6, 3)


def _fail(error: Exception) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


@pytest.mark.parametrize("config", ['{"model_type": "llama"}', None])
async def test_what_is_no_policy(tmp_path: Path, config: str | None) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"no config\.json" if config is None else "of the type 'llama'"):
        await PolicyEngine(stage(tmp_path)).start()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"engine_args": {"max_num_seqs": 4}}, "unknown to the policy engine"),
        ({"engine_args": {"dtype": "int8"}}, "dtype must be"),
        ({"default_sampling_params": {"num_inference_steps": 0}}, r"default_sampling_params: .*>= 1"),
        ({"default_sampling_params": {"temperature": 1}}, "default_sampling_params: .*temperature"),
    ],
)
async def test_arguments_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PolicyEngine(stage(tmp_path, **arguments))
