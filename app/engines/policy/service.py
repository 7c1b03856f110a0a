"""A loaded policy that answers requests: from an observation to the actions that follow it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from app.cluster.messages import Accepted, Document, Done, Failed, Load
from app.engines.base import EngineError, Request
from app.engines.device import is_out_of_memory, out_of_memory, release_memory
from app.engines.policy.arrays import pack
from app.engines.policy.observation import Observation, Reset, read_observation
from app.engines.policy.options import PolicyOptions
from app.engines.policy.pi0 import Pi0, load
from app.engines.threads import same_number_of_threads
from app.protocol.robot import TASK
from app.settings.inspection import model_type
from app.settings.schema import StageConfig

_TYPE = "pi0"


class _LeftError(Exception):
    """Nobody waits for the actions any more."""


class Service:
    """Takes observations on the event loop and hands them to the engine's thread, first come, first served."""

    def __init__(self, policy: Pi0, options: PolicyOptions, max_pixels: int) -> None:
        self.card = policy.card
        self._policy = policy
        self._seed = options.sampling.seed
        self._max_pixels = max_pixels
        self._thread = ThreadPoolExecutor(1, "policy", same_number_of_threads())
        self._asked = self._running = self._steps = 0
        self._closed = False

    async def answer(self, request: Request) -> None:
        """Serve one request to its end; cancelling it ends the flow at its next step.

        Raises:
            EngineError: it is refused or failed.
        """
        if request.kind != TASK:
            raise EngineError(Failed(400, f"a policy does not serve {request.kind!r}", "invalid_request_error"))
        asked = await asyncio.to_thread(self._judged, request.body)
        request.emit(Accepted())
        if isinstance(asked, Reset):  # pi0 decides by what it sees, and remembers nothing
            answer: dict[str, object] = {"status": "reset successful"}
        else:
            answer = await self._acted(asked)
        request.emit(Document(pack(answer)))
        request.emit(Done())

    def _judged(self, body: bytes) -> Observation | Reset:
        asked = read_observation(body, self._max_pixels)
        if isinstance(asked, Observation):
            self._policy.check(asked)
        return asked

    async def _acted(self, observation: Observation) -> dict[str, object]:
        seed = next(x for x in (observation.sampling.seed, self._seed, int.from_bytes(os.urandom(7))) if x is not None)
        left = False

        def step() -> None:
            self._steps += 1
            if left or self._closed:
                raise _LeftError

        self._asked += 1
        try:
            act = partial(self._act, observation, seed, step)
            return await asyncio.get_running_loop().run_in_executor(self._thread, act)
        finally:
            left = True
            self._asked -= 1

    def _act(self, observation: Observation, seed: int, step: Callable[[], None]) -> dict[str, object]:
        """On the engine's thread."""
        self._running += 1
        began = time.monotonic()
        try:
            actions = self._policy.act(observation, seed, step)
            return {"actions": actions, "policy_timing": {"infer_ms": (time.monotonic() - began) * 1000}}
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            release_memory()
            raise out_of_memory("observation", "send fewer or smaller pictures") from error
        finally:
            self._running -= 1

    def load(self) -> Load:
        """Requests whose actions are being computed, those that wait for that, and steps of the flow so far."""
        return Load(self._running, max(0, self._asked - self._running), self._steps)

    def close(self) -> None:
        """Leave what is being computed and end the thread."""
        self._closed = True
        self._thread.shutdown(cancel_futures=True)


def open_service(stage: StageConfig, options: PolicyOptions, max_pixels: int) -> Service:
    """Load the stage's model. A picture may have `max_pixels`.

    Raises:
        ValueError: the model is no policy that is known, or lacks something.
        OSError: a file of the model is missing or broken.
    """
    directory = Path(stage.model)
    if (found := model_type(directory)) != _TYPE:
        raise ValueError(f"{directory} is of the type {found!r}; policies of the type {_TYPE} are served")
    return Service(load(directory, options), options, max_pixels)
