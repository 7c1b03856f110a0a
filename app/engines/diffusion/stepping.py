"""Step execution: requests at different steps share the denoiser's passes, joining and leaving between any two.

Every request runs the stock pipeline in a thread of its own, on a shell of its own. Only the denoiser is shared: calls
of it that meet are fused into one. What else is shared and keeps a state (tokenizers, autoencoders) is locked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch

from app.engines.diffusion import fusing
from app.engines.diffusion.offer import Offer
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.watch import Watch

logger = logging.getLogger("app.diffusion")

_MAX_WAIT_S = 0.004
"""How long a call of the denoiser waits for those of other requests that are between two steps."""


class _Part:
    """One call that waits to be computed, then its result."""

    __slots__ = ("arrived", "done", "error", "forward", "model", "result")

    def __init__(self, model: torch.nn.Module, forward: fusing.Forward) -> None:
        self.model = model
        self.forward = forward
        self.arrived = time.monotonic()
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None


class Rendezvous:
    """Where the calls of several threads meet. One of the threads computes for all; the others wait for it."""

    def __init__(self, most: int, max_wait_s: float) -> None:
        """At most `most` calls are fused; a call waits `max_wait_s` for the others that have joined."""
        self._most = most
        self._max_wait_s = max_wait_s
        self._changed = threading.Condition()
        self._parts: list[_Part] = []
        self._joined = 0
        self._busy = False

    def join(self) -> None:
        """The calling thread is about to call again and again: worth waiting for."""
        with self._changed:
            self._joined += 1

    def leave(self) -> None:
        with self._changed:
            self._joined -= 1
            self._changed.notify_all()

    def call(self, model: torch.nn.Module, forward: fusing.Forward) -> Any:
        """The model's output for this call, computed together with others where they meet.

        Raises:
            Exception: what the model raised for this call alone.
        """
        part = _Part(model, forward)
        with self._changed:
            self._parts.append(part)
            self._changed.notify_all()
        while (group := self._await(part)) is not None:
            try:
                _compute(group)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        if part.error is not None:
            raise part.error
        return part.result

    def _await(self, part: _Part) -> list[_Part] | None:
        """Calls that this thread shall compute; None: its own is done."""
        with self._changed:
            while not part.done:
                if self._busy:
                    self._changed.wait()
                elif (pause := self._pause()) > 0:
                    self._changed.wait(pause)
                else:
                    return self._take()
        return None

    def _pause(self) -> float:
        if len(self._parts) >= self._joined:
            return 0.0
        return self._parts[0].arrived + self._max_wait_s - time.monotonic()

    def _take(self) -> list[_Part]:
        """The oldest call and those that go with it; who has waited longest is next, whatever its shapes."""
        key = self._parts[0].forward.key
        group = [part for part in self._parts if part.forward.key == key][: self._most]
        self._parts = [part for part in self._parts if part not in group]
        self._busy = True
        return group


def _compute(group: list[_Part]) -> None:
    """Fill in the results. What fails together is tried one by one, so that only the bad one fails."""
    try:
        results = fusing.run(group[0].model, [part.forward for part in group])
    except Exception as error:  # noqa: BLE001 - passed on to the thread whose call it is
        if len(group) > 1:
            logger.warning("%d passes could not be fused (%r), so each is computed alone", len(group), error)
            for part in group:
                _compute([part])
            return
        group[0].error = error
    else:
        for part, result in zip(group, results, strict=True):
            part.result = result
    for part in group:
        part.done = True


class Seat:
    """Stands in for a denoiser in one pipeline object: calls go to the rendezvous, all else to the denoiser."""

    def __init__(self, model: torch.nn.Module, rendezvous: Rendezvous, watch: Watch) -> None:
        self._model = model
        self._rendezvous = rendezvous
        self._watch = watch
        self._digests: fusing.Digests = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.check()
        forward = fusing.Forward(self._model, args, kwargs, self._digests)
        return self._rendezvous.call(self._model, forward)

    def cache_context(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        """Caches belong to the model and not to a request, so there is none here."""
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Stepper:
    """What the pipeline objects of all running requests share."""

    def __init__(self, pipe: Any, offer: Offer, most: int, max_wait_s: float = _MAX_WAIT_S) -> None:
        """Locks the autoencoder of `pipe` for good. `most` and `max_wait_s` as for a Rendezvous.

        Raises:
            ValueError: requests of this pipeline cannot run side by side; the message says why.
        """
        _check(pipe, offer)
        self._models = denoisers(pipe)
        self.rendezvous = Rendezvous(most, max_wait_s)
        self.text_lock = threading.Lock()
        vae, lock = getattr(pipe, "vae", None), threading.Lock()
        for name in ("encode", "decode"):
            if hasattr(vae, name):
                setattr(vae, name, _locked(getattr(vae, name), lock))

    @contextmanager
    def seated(self, pipe: Any, watch: Watch) -> Iterator[None]:
        """Make `pipe`, a shell, share the denoiser until its call has ended."""
        for name, model in self._models.items():
            # Past DiffusionPipeline.__setattr__, which would take the seat for a component of another class.
            pipe.__dict__[name] = Seat(model, self.rendezvous, watch)
        pipe.encode_prompt = _locked(pipe.encode_prompt, self.text_lock)
        watch.enter_loop, watch.leave_loop = self.rendezvous.join, self.rendezvous.leave
        try:
            yield
        finally:
            watch.end_loop()


def _check(pipe: Any, offer: Offer) -> None:
    if not denoisers(pipe):
        raise ValueError(f"--step-execution: {type(pipe).__name__} has no single denoiser; remove it")
    for mode in offer.modes.values():
        if not hasattr(mode.cls, "encode_prompt"):
            raise ValueError(f"--step-execution: {mode.cls.__name__} encodes its prompts in its own way; remove it")
    vae = getattr(pipe, "vae", None)
    if vae is not None and vae.dtype == torch.float16 and vae.config.get("force_upcast", False):
        raise ValueError(
            "--step-execution: this pipeline changes the type of its autoencoder during every call; "
            "load it with --dtype bfloat16 or float32"
        )


def _locked(function: Callable[..., Any], lock: threading.Lock) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return call
