"""A thinker's worker in vLLM that hands the rows of some requests to the replica: those that somebody will speak.

A row is what the talker is told of one position:

* Qwen2.5-Omni: final hidden state + token embedding; at positions of sounds, images and videos the state alone.
* Qwen3-Omni: token embedding; at those positions the state of layer `accept_hidden_layer`, which vLLM's thinker can
  return beside the final one, as it does for drafters.

Nothing is computed twice but the embeddings of tapped positions: the layers add to those of the step in place.

What vLLM does not promise: that the runner has its `execute_model_state` between a step and its sampling; that these
are the states of all positions of the step, in the order of `input_batch.req_ids`; where its `input_ids` are; that its
flag `use_aux_hidden_state_outputs` may be set once the model is loaded. Guards: tests/engines/omni/test_guards.py.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from app.engines.omni.platformworker import PLATFORM_WORKER
from app.engines.omni.rowchannel import RowSender, Span, Step

TAP_KEY = "omni_rows"
"""The sampling parameter (in extra_args) that taps a request: its key in the channel."""
_KEYS = 1 << 63
ADDRESS = "APP_THINKER_ROWS"
"""The environment variable that tells the worker where the replica listens."""


def recipe(config: Any) -> Recipe:
    """How the rows of a model are made, by its configuration."""
    return ChosenRows(config) if config.model_type == "qwen3_omni_moe" else AddedRows(config)


class Recipe(Protocol):
    """`layers` are the states that it needs beside the final ones, `placeholders` the tokens that stand for media."""

    placeholders: list[int]
    layers: tuple[int, ...]

    def make(
        self, embeddings: torch.Tensor, states: Sequence[torch.Tensor], media: torch.Tensor | None
    ) -> torch.Tensor:
        """[n, H] of n positions: embeddings of their tokens, their states (the final ones, then those of `layers`),
        and true where they belong to something seen or heard."""
        ...


class AddedRows:
    """Qwen2.5-Omni's."""

    layers: tuple[int, ...] = ()

    def __init__(self, config: Any) -> None:
        thinker = config.thinker_config
        self.placeholders = [thinker.audio_token_index, thinker.image_token_index, thinker.video_token_index]

    def make(
        self, embeddings: torch.Tensor, states: Sequence[torch.Tensor], media: torch.Tensor | None
    ) -> torch.Tensor:
        """See Recipe."""
        if media is not None:
            embeddings = embeddings.masked_fill(media.unsqueeze(-1), 0)
        return states[0] + embeddings


class ChosenRows:
    """Qwen3-Omni's."""

    def __init__(self, config: Any) -> None:
        thinker = config.thinker_config
        self.placeholders = [thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id]
        self.layers: tuple[int, ...] = (config.talker_config.accept_hidden_layer,)

    def make(
        self, embeddings: torch.Tensor, states: Sequence[torch.Tensor], media: torch.Tensor | None
    ) -> torch.Tensor:
        """See Recipe."""
        return embeddings if media is None else torch.where(media.unsqueeze(-1), states[1], embeddings)


class Tapped:
    """One request: which positions have gone out, and which of its prompt's are of something seen or heard."""

    def __init__(self, key: int, prompt: list[int], placeholders: list[int], positions: torch.Tensor) -> None:
        self.key = key
        self.next = 0
        media = np.isin(np.asarray(prompt), placeholders)
        self._media = media if media.any() else None
        self._positions = positions.to(torch.int32).contiguous().numpy().tobytes()

    def span(self, start: int, count: int) -> Span | None:
        """The part of these positions that has not gone out: after a preemption they are computed once more."""
        first, end = max(start, self.next), start + count
        if first >= end:
            return None
        positions = b"" if self.next else self._positions
        self.next = end
        return Span(self.key, first, end - first, positions)

    def media(self, span: Span) -> np.ndarray[Any, Any] | None:
        """Bool [count], or None if nothing there was seen or heard."""
        if self._media is None or span.start >= len(self._media):
            return None
        known = self._media[span.start : span.start + span.count]
        return np.pad(known, (0, span.count - len(known)))


class Tap:
    """Follows the scheduler's steps and sends what they computed for tapped requests. Without an outlet it only takes
    part in looking up embeddings, which several workers share."""

    def __init__(self, runner: Any, recipe: Recipe, outlet: Outlet | None) -> None:
        self._runner = runner
        self._model = runner.get_model()
        self._recipe = recipe
        self._outlet = outlet
        self._requests: dict[str, Tapped] = {}

    def follow(self, step: Any) -> None:
        """To be called after each step with vLLM's SchedulerOutput, before its tokens are sampled."""
        for request_id in step.finished_req_ids:
            self._requests.pop(request_id, None)
        for new in step.scheduled_new_reqs:
            self._meet(new)
        state = self._runner.execute_model_state
        if state is not None and not self._requests.keys().isdisjoint(step.num_scheduled_tokens):
            with torch.inference_mode():  # as vLLM's own step
                self._send(step, state)

    def _meet(self, new: Any) -> None:
        extra = getattr(new.sampling_params, "extra_args", None) or {}
        key = extra.get(TAP_KEY)
        prompt = new.prompt_token_ids
        # What a client calls so in a request of its own (vllm_xargs) must not end the worker; nobody reads those rows.
        if type(key) is int and 0 <= key < _KEYS and prompt and new.req_id not in self._requests:
            positions, _ = self._model.get_mrope_input_positions(prompt, new.mm_features)
            self._requests[new.req_id] = Tapped(key, prompt, self._recipe.placeholders, positions)

    def _send(self, step: Any, state: Any) -> None:
        spans: list[Span] = []
        places: list[np.ndarray[Any, Any]] = []
        media: list[np.ndarray[Any, Any] | None] = []
        for tapped, span, place in self._spans(step, state):
            spans.append(span)
            places.append(np.arange(place, place + span.count))
            media.append(tapped.media(span))
        if not spans:
            return
        device = state.hidden_states.device
        index = torch.from_numpy(np.concatenate(places)).to(device)
        embeddings = self._model.get_language_model().embed_input_ids(self._input_ids(state)[index])
        if self._outlet is not None:
            states = [every[index] for every in (state.hidden_states, *(state.aux_hidden_states or ()))]
            self._outlet.put(spans, self._recipe.make(embeddings, states, _joined(spans, media, device)))

    def _batch(self, state: Any) -> Any:
        """vLLM's second runner keeps it with the states, its first one for itself; so the ids of the input."""
        return getattr(state, "input_batch", None) or self._runner.input_batch

    def _input_ids(self, state: Any) -> torch.Tensor:
        ids: torch.Tensor = state.input_batch.input_ids if hasattr(state, "input_batch") else self._runner.input_ids.gpu
        return ids

    def _spans(self, step: Any, state: Any) -> Iterator[tuple[Tapped, Span, int]]:
        """Each tapped request of the step, what is new of it, and where that begins in the step's flat batch."""
        cached = step.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        starts |= {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        offset = 0
        for request_id in self._batch(state).req_ids:
            count = step.num_scheduled_tokens.get(request_id, 0)
            if (tapped := self._requests.get(request_id)) is not None and count:
                start = starts[request_id]
                if (span := tapped.span(start, count)) is not None:
                    yield tapped, span, offset + span.start - start
            offset += count


def _joined(spans: list[Span], media: list[np.ndarray[Any, Any] | None], device: torch.device) -> torch.Tensor | None:
    if all(mask is None for mask in media):
        return None
    masks = [np.zeros(span.count, bool) if mask is None else mask for span, mask in zip(spans, media, strict=True)]
    return torch.from_numpy(np.concatenate(masks)).to(device)


class Outlet:
    """Sends rows. From an accelerator they are copied while the next step runs, and a thread waits for them."""

    _AHEAD = 4

    def __init__(self, sender: RowSender) -> None:
        self._sender = sender
        self._copies: queue.Queue[tuple[list[Span], torch.Tensor, torch.Event]] = queue.Queue(self._AHEAD)
        self._thread: threading.Thread | None = None

    def put(self, spans: list[Span], rows: torch.Tensor) -> None:
        """Rows [n, H] of those spans, one after the other; waits while too many are on their way."""
        if rows.device.type == "cpu":
            self._send(spans, rows)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="thinker-rows", daemon=True)
            self._thread.start()
        copy = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        copy.copy_(rows, non_blocking=True)
        arrived = torch.Event(rows.device)
        arrived.record()
        self._copies.put((spans, copy, arrived))

    def _run(self) -> None:
        while True:
            spans, copy, arrived = self._copies.get()
            arrived.synchronize()
            self._send(spans, copy)

    def _send(self, spans: list[Span], rows: torch.Tensor) -> None:
        dtype = str(rows.dtype).removeprefix("torch.")
        data = memoryview(rows.contiguous().view(-1).view(torch.uint8).numpy())
        self._sender.send(Step(dtype, rows.shape[-1], spans), data)


class ThinkerWorker(PLATFORM_WORKER):  # type: ignore[misc]
    """The platform's worker with a tap. Of the workers that share one model by tensor parallelism the first sends; all
    of them have the same hidden states."""

    _tap: Tap | None = None

    def load_model(self, *args: Any, **options: Any) -> None:
        """As vLLM's; the tap is put on before anything is compiled or captured."""
        super().load_model(*args, **options)
        ingredients = recipe(self.model_config.hf_config)
        if ingredients.layers:
            self.model_runner.get_model().get_language_model().set_aux_hidden_state_layers(ingredients.layers)
            self.model_runner.use_aux_hidden_state_outputs = True
        sends = get_tensor_model_parallel_rank() == 0
        outlet = Outlet(RowSender(os.environ[ADDRESS])) if sends else None
        self._tap = Tap(self.model_runner, ingredients, outlet)

    def execute_model(self, scheduler_output: Any) -> Any:
        """As vLLM's."""
        output = super().execute_model(scheduler_output)
        if self._tap is not None:
            self._tap.follow(scheduler_output)
        return output
