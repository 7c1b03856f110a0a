"""Runs calls on the engine's thread: one pipeline call for a batch of rows, and nothing of it sticks to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from app.engines.base import EngineError
from app.engines.device import is_out_of_memory, release_memory
from app.engines.diffusion import pixels
from app.engines.diffusion.batching import Drawn, Row, RowQueue, Sounded
from app.engines.diffusion.caches import Cache
from app.engines.diffusion.call import Call
from app.engines.diffusion.eightbits import EightBits
from app.engines.diffusion.failures import AbandonedError, explain
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.offer import SOUND, Offer
from app.engines.diffusion.parts import modules
from app.engines.diffusion.pieces import Pieces
from app.engines.diffusion.profiler import Profiler
from app.engines.diffusion.ranks.group import Group, GroupEndedError, together
from app.engines.diffusion.siblings import shell
from app.engines.diffusion.sound import samples
from app.engines.diffusion.stepping import Stepper
from app.engines.diffusion.watch import Watch

if TYPE_CHECKING:
    from app.engines.diffusion.ranks.shares import Shares


class Runner:
    """The loaded pipeline. `steps` counts signs of life, calls of its modules and finished steps, about right."""

    def __init__(
        self,
        pipe: Any,
        offer: Offer,
        adapters: Adapters,
        *,
        stepper: Stepper | None = None,
        cache: Cache | None = None,
        profiler: Profiler | None = None,
        group: Group | None = None,
        shares: Shares | None = None,
        bytes_on_device: bool = True,
        eight_bits: EightBits | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        """With a `stepper`, several threads may serve and draw at the same time; there is no `cache` then.

        Of several ranks each has its `shares` of a call, and rank 0 has the `group` of the others. `bytes_on_device`:
        pictures are rounded to bytes before they leave the device. `eight_bits`: kernels that change by steps.
        `pieces`: videos are told of while they are decoded.
        """
        self._pipe = pipe
        self._adapters = adapters
        self._stepper = stepper
        self._cache = cache
        self._profiler = profiler
        self._group = group
        self._shares = shares
        self._bytes_on_device = bytes_on_device
        self._eight_bits = eight_bits
        self._pieces = pieces
        self._offer = offer
        self._modules = [
            module
            for module in modules(pipe).values()
            # A wholly compiled module runs its hooks as part of the graph, or not at all: its steps are watched only.
            if getattr(module, "_compiled_call_impl", None) is None
        ]
        # Pipelines call a method of their autoencoder, no module; a video takes minutes in there.
        self._decoder = list(decoder.modules()) if (decoder := _decoder(pipe)) is not None else []
        if stepper is not None:  # whose calls share it, so that nobody can leave another one's
            for module in self._decoder:
                module.register_forward_pre_hook(lambda *_: self._tick())
        self._text_lock = stepper.text_lock if stepper is not None else threading.Lock()
        self.steps = 0

    def serve(self, queue: RowQueue) -> None:
        """Draw what the queue holds until it is closed."""
        while (rows := queue.take()) is not None:
            self.draw(rows)

    def draw(self, rows: list[Row]) -> None:
        """Draw rows of one key together. If that fails, each is tried alone, so that only the bad ones fail."""
        for row in rows:
            row.listener.started(row)
        failure = self._attempt(rows)
        if failure is None:
            return
        if len(rows) == 1:
            rows[0].listener.finished(rows[0], failure)
            return
        for row in rows:
            if not row.cancelled and (failure := self._attempt([row])) is not None:
                row.listener.finished(row, failure)

    def draw_along(self, rows: list[Row]) -> None:
        """Draw them on a rank whose result nobody asks for.

        Raises:
            AbandonedError: the ranks have agreed to leave the call.
            Exception: whatever the pipeline raises.
        """
        self._call(rows, self._watch(rows))

    def _watch(self, rows: list[Row]) -> Watch:
        return Watch(rows, self._tick, self._shares.agree if self._shares is not None else None)

    def _attempt(self, rows: list[Row]) -> EngineError | None:
        """One pipeline call; its failure, None where there is nobody left to tell."""
        watch = self._watch(rows)
        exhausted = False
        try:
            with together(self._group, "draw", [(row.call, row.index) for row in rows]):
                drawn = self._call(rows, watch)
        except AbandonedError:
            return None
        except GroupEndedError:
            raise  # the replica ends, and what it had not answered goes to another one
        except Exception as error:  # noqa: BLE001 - whatever a pipeline raises stays with its request
            exhausted = is_out_of_memory(error)
            failure = explain(error, began=watch.step > 0)
        else:
            for row, outcome in zip(rows, drawn, strict=True):
                if not row.cancelled:
                    row.listener.finished(row, outcome)
            return None
        if exhausted:
            release_memory()  # only now, when the exception and with it the call's tensors are gone
        return failure

    def _tick(self) -> None:
        self.steps += 1

    # ------------------------------------------------------------------------------------------------ one call

    def _call(self, rows: list[Row], watch: Watch) -> Sequence[Drawn | Sounded]:
        watch.check()
        call = rows[0].call
        pipe = shell(self._pipe, call.mode.cls)
        _configure(pipe, call, self._offer)
        pipe.progress_bar = watch.progress_bar
        with self._text_lock:
            tokens = [_count_tokens(pipe, row.call.prompt) for row in rows]
        with ExitStack() as stack:
            if self._stepper is not None:
                stack.enter_context(self._stepper.seated(pipe, call, watch))
            else:
                stack.enter_context(self._watched(pipe, rows, watch))
            if self._eight_bits is not None:
                stack.enter_context(self._eight_bits.during(watch))
            if self._profiler is not None:
                stack.enter_context(self._profiler.measured(pipe))
            if self._pieces is not None and call.in_pieces:
                stack.enter_context(self._pieces.during(pipe, rows[0]))
            arguments = _arguments(pipe, rows, watch, pixels.output_type(pipe) if self._bytes_on_device else "np")
            if self._shares is not None:
                stack.enter_context(self._shares.during(pipe, arguments))
            output = pipe(**arguments)
        made = output[call.mode.abilities.output_field or 0]
        if call.mode.task == SOUND:
            return [Sounded(row, count) for row, count in zip(samples(made), tokens, strict=True)]
        return [Drawn(row, count) for row, count in zip(pixels.pictures(made), tokens, strict=True)]

    @contextmanager
    def _watched(self, pipe: Any, rows: list[Row], watch: Watch) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._adapters.active([row.call.blend for row in rows]))
            # Where parts are offloaded this also brings them home, as a pipeline that is left midway does not.
            stack.callback(self._pipe.maybe_free_model_hooks)
            for module in (*self._modules, *self._decoder):
                stack.callback(module.register_forward_pre_hook(watch.check).remove)
            if self._cache is not None:
                stack.enter_context(self._cache.during(pipe, rows[0].call.steps))
            yield


def _decoder(pipe: Any) -> torch.nn.Module | None:
    decoder = getattr(getattr(pipe, "vae", None), "decoder", None)
    return decoder if isinstance(decoder, torch.nn.Module) else None


def _configure(pipe: Any, call: Call, offer: Offer) -> None:
    """What is set on a pipeline and not given to its call; the shell is thrown away, so it need not be taken back."""
    if call.shift is not None:
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, **{offer.shift: call.shift})
    if call.boundary_ratio is not None:
        pipe.register_to_config(boundary_ratio=call.boundary_ratio)


def _arguments(pipe: Any, rows: list[Row], watch: Watch, output_type: str) -> dict[str, Any]:
    """A row alone is called as a user would call it, so that its picture is equal to the last bit."""
    call, alone = rows[0].call, len(rows) == 1
    # Generators of the CPU: the same noise on every device.
    generators = [torch.Generator("cpu").manual_seed(row.seed) for row in rows]
    arguments = call.arguments | {
        "prompt": call.prompt if alone else [row.call.prompt for row in rows],
        "generator": generators[0] if alone else generators,
        "output_type": output_type,
    }
    if call.negative_prompt is not None:
        arguments["negative_prompt"] = call.negative_prompt if alone else [row.call.negative_prompt for row in rows]
    if images := call.inputs.images:
        arguments[call.mode.abilities.image_parameter] = images if len(images) > 1 else images[0]
    if call.inputs.mask is not None:
        arguments[call.mode.abilities.mask_parameter] = call.inputs.mask
    if watch.wants_previews:
        arguments |= {
            "callback_on_step_end": watch.after_step,
            "callback_on_step_end_tensor_inputs": ["latents"],
        }
    return {name: value for name, value in arguments.items() if name in call.mode.signature}


def _count_tokens(pipe: Any, prompt: str) -> int:
    tokenizer = getattr(pipe, "tokenizer", None)
    return len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) if tokenizer is not None and prompt else 0
