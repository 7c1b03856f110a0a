"""Step execution: requests at different steps share the denoiser's passes, joining and leaving between any two.

Every request runs the stock pipeline in a thread of its own, on a shell of its own. Only the denoiser is shared: calls
of it that meet are fused into one. What else is shared and keeps a state (tokenizers, autoencoders) is locked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch

from app.engines.diffusion import fusing
from app.engines.diffusion.batching import take_together
from app.engines.diffusion.call import Call
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.loraweights import Blend
from app.engines.diffusion.offer import Offer
from app.engines.diffusion.parts import denoisers
from app.engines.diffusion.profiler import Profiler
from app.engines.diffusion.watch import Watch

logger = logging.getLogger("app.diffusion")

Active = Callable[[Sequence[Blend]], AbstractContextManager[None]]

_MAX_WAIT_S = 0.004
"""How long a call of the denoiser waits for those of other requests that are between two steps."""


class _Part:
    """One call that waits to be computed, then its result."""

    __slots__ = ("arrived", "blend", "done", "error", "forward", "model", "result")

    def __init__(self, model: torch.nn.Module, forward: fusing.Forward, blend: Blend) -> None:
        self.model = model
        self.forward = forward
        self.blend = blend
        self.arrived = time.monotonic()
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None


class Rendezvous:
    """Where the calls of several threads meet. One of the threads computes for all; the others wait for it."""

    def __init__(self, most: int, max_wait_s: float, active: Active, max_loras: int = 1) -> None:
        """At most `most` calls with `max_loras` adapters are fused; a call waits `max_wait_s` for others that joined.

        `active` surrounds a pass with the LoRA adapters of its rows.
        """
        self._most = most
        self._active = active
        self._max_loras = max_loras
        self._max_wait_s = max_wait_s
        self._changed = threading.Condition()
        self._parts: deque[_Part] = deque()
        self._joined = 0
        self._busy = False
        self._freed = 0.0

    def join(self) -> None:
        """The calling thread is about to call again and again: worth waiting for."""
        with self._changed:
            self._joined += 1

    def leave(self) -> None:
        with self._changed:
            self._joined -= 1
            self._changed.notify_all()

    def call(self, model: torch.nn.Module, forward: fusing.Forward, blend: Blend = ()) -> Any:
        """The model's output for this call, computed together with others where they meet.

        Raises:
            Exception: what the model raised for this call alone.
        """
        part = _Part(model, forward, blend)
        with self._changed:
            self._parts.append(part)
            self._changed.notify_all()
        while (group := self._await(part)) is not None:
            try:
                self._compute(group)
            finally:
                with self._changed:
                    self._busy = False
                    self._freed = time.monotonic()
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
        missing = self._joined - len(self._parts)
        if missing <= 0:
            return 0.0
        # From the end of the last pass on: who was computed in it comes back soon, and whoever arrived meanwhile would
        # otherwise go without them, and the two groups would take turns for ever. Threads do what is between two steps
        # one after the other, under the interpreter's lock.
        since = max(self._parts[0].arrived, self._freed)
        return since + self._max_wait_s * missing - time.monotonic()

    def _take(self) -> list[_Part]:
        """The oldest call and those that go with it; who has waited longest is next, whatever its shapes."""
        key = self._parts[0].forward.key
        alike = deque(part for part in self._parts if part.forward.key == key)
        group = take_together(alike, self._most, lambda part: part.blend, self._max_loras)
        self._parts = deque(part for part in self._parts if part not in group)
        self._busy = True
        return group

    def _compute(self, group: list[_Part]) -> None:
        """Fill in the results. What fails together is tried one by one, so that only the bad one fails."""
        blends = [part.blend for part in group for _ in range(part.forward.rows or 1)]
        try:
            with self._active(blends):
                results = fusing.run(group[0].model, [part.forward for part in group])
        except Exception as error:  # noqa: BLE001 - passed on to the thread whose call it is
            if len(group) > 1:
                logger.warning("%d passes could not be fused (%r), so each is computed alone", len(group), error)
                for part in group:
                    self._compute([part])
                return
            group[0].error = error
        else:
            for part, result in zip(group, results, strict=True):
                part.result = result
        for part in group:
            part.done = True


class Seat:
    """Stands in for a denoiser in one pipeline object: calls go to the rendezvous, all else to the denoiser."""

    def __init__(
        self, model: torch.nn.Module, rendezvous: Rendezvous, blend: Blend, watch: Watch, profiler: Profiler | None
    ) -> None:
        self._model = model
        self._profiler = profiler
        self._blend = blend
        self._rendezvous = rendezvous
        self._watch = watch
        self._digests: fusing.Digests = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.check()
        forward = fusing.Forward(self._model, args, kwargs, self._digests)
        with self._profiler.clock("denoise") if self._profiler is not None else nullcontext():
            return self._rendezvous.call(self._model, forward, self._blend)

    def cache_context(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        """Caches belong to the model and not to a request, so there is none here."""
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Stepper:
    """What the pipeline objects of all running requests share."""

    def __init__(
        self,
        pipe: Any,
        offer: Offer,
        adapters: Adapters,
        most: int,
        *,
        max_wait_s: float = _MAX_WAIT_S,
        profiler: Profiler | None = None,
    ) -> None:
        """Locks the autoencoder of `pipe` for good. `most` and `max_wait_s` as for a Rendezvous.

        Raises:
            ValueError: requests of this pipeline cannot run side by side; the message says why.
        """
        _check(pipe, offer)
        self._models = denoisers(pipe)
        self._active = adapters.active
        self._profiler = profiler
        self.rendezvous = Rendezvous(most, max_wait_s, adapters.active, adapters.most)
        self.text_lock = threading.Lock()
        vae, lock = getattr(pipe, "vae", None), threading.Lock()
        for name in ("encode", "decode"):
            if hasattr(vae, name):
                setattr(vae, name, _locked(getattr(vae, name), lock))

    @contextmanager
    def seated(self, pipe: Any, call: Call, watch: Watch) -> Iterator[None]:
        """Make `pipe`, a shell, share the denoiser until its one call has ended."""
        for name, model in self._models.items():
            # Past DiffusionPipeline.__setattr__, which would take the seat for a component of another class.
            pipe.__dict__[name] = Seat(model, self.rendezvous, call.blend, watch, self._profiler)
        pipe.encode_prompt = self._encoding(pipe.encode_prompt, call.blend)
        watch.enter_loop, watch.leave_loop = self.rendezvous.join, self.rendezvous.leave
        try:
            yield
        finally:
            watch.end_loop()

    def _encoding(self, encode: Callable[..., Any], blend: Blend) -> Callable[..., Any]:
        """Alone, and with the adapters of the request, which may have weights for the text encoder too."""

        @wraps(encode)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.text_lock, self._active([blend]):
                return encode(*args, **kwargs)

        return call


def _check(pipe: Any, offer: Offer) -> None:
    if offer.sound is not None:
        raise ValueError(f"--step-execution: it is for pictures, and {type(pipe).__name__} makes sound; remove it")
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
