"""Trains the demo's picture model from nothing: `python -m app.demo.train_t2i --out DIR`. Never part of CI.

Two phases: the autoencoder (pictures to latents and back), then the denoiser together with the text encoder. What a
step draws by chance follows from the seed and the number of the step, the learning rate from that number alone: a run
that was stopped and goes on with `--resume` sees what an undisturbed one would have seen.

DIR/training.pt is the state to resume from, DIR/pipeline the model so far (averaged weights in half precision). They
are written every few minutes, at the end of each phase, and when the run stops: after `--minutes`, or on SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec
import torch
import torch.nn.functional as nnf
from diffusers import AutoencoderTiny, StableDiffusionPipeline
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import CLIPTokenizer

from app.demo import blueprint
from app.demo.phase import Phase
from app.demo.shapes import caption, draw_crowd, draw_scene, render

log = logging.getLogger("train_t2i")

_LATENT_NOISE = 0.05
"""Standard deviation of what is added to latents before they are decoded: the denoiser will not hit them exactly."""
_LATENT_PULL = 1e-3
"""Weight of the latents' mean square, which keeps them centred and small."""
_CAPTION_DROPOUT = 0.1
_TIME_POWER = 0.6
"""Below 1: more of the noisy times, where the text decides what is drawn, than of those that only clean up."""
_SAVE_EVERY_CPU_S = 180
_SAY_EVERY = 100

_Movable = TypeVar("_Movable", torch.nn.Module, torch.Tensor)


class Plan(msgspec.Struct, frozen=True):
    """What decides how the weights turn out. The batches are pictures a step, the rates the highest of a phase."""

    seed: int = 1
    autoencoder_steps: int = 5000
    autoencoder_batch: int = 8
    autoencoder_rate: float = 2e-3
    denoiser_steps: int = 9500
    denoiser_batch: int = 32
    denoiser_rate: float = 1e-3


class StoppedError(Exception):
    """The granted time is over; the state is saved."""


class Trainer:
    """Both phases and their state on disk."""

    def __init__(self, plan: Plan, out: Path, over: Callable[[], bool]) -> None:
        """`over` is asked before each step whether the run has to stop there."""
        self.plan = plan
        self.out = out
        self.over = over
        self.cpu_s = 0.0
        self._cpu_mark = time.process_time()
        torch.manual_seed(plan.seed)
        self.tokenizer: CLIPTokenizer = blueprint.tokenizer()
        self.scheduler = blueprint.scheduler()
        self.autoencoding = Phase(
            "autoencoder",
            [_channels_last(blueprint.autoencoder())],
            steps=plan.autoencoder_steps,
            rate=plan.autoencoder_rate,
            warm_up=50,
            decay=0.5,
        )
        self.denoising = Phase(
            "denoiser",
            [_channels_last(blueprint.denoiser()), blueprint.text_encoder(self.tokenizer)],
            steps=plan.denoiser_steps,
            rate=plan.denoiser_rate,
            warm_up=200,
            decay=0.35,
        )

    @property
    def autoencoder(self) -> AutoencoderTiny:
        """The averaged one, on whose latents the denoiser is trained."""
        return self.autoencoding.averaged[0]

    def train(self) -> None:
        """Runs what is left of both phases.

        Raises:
            StoppedError: `over` said so.
        """
        self._run(self.autoencoding, self._autoencoder_loss)
        self._measure_autoencoder()
        self._run(self.denoising, self._denoiser_loss)

    def resume(self) -> None:
        """Takes up the state that an earlier run left."""
        state = torch.load(self.out / "training.pt", weights_only=True)
        self.autoencoding.load(state["autoencoding"])
        self.denoising.load(state["denoising"])
        self.cpu_s = state["cpu_s"]

    def save(self) -> None:
        """Writes the state and the model so far."""
        self.cpu_s += time.process_time() - self._cpu_mark
        self._cpu_mark = time.process_time()
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.out / "training.pt.part"
        state = {"autoencoding": self.autoencoding.state(), "denoising": self.denoising.state(), "cpu_s": self.cpu_s}
        torch.save(state, part)
        part.rename(self.out / "training.pt")
        self.pipeline().save_pretrained(self.out / "pipeline")
        (self.out / "pipeline" / "README.md").write_text(self._card())

    def pipeline(self) -> StableDiffusionPipeline:
        """The model so far, in half precision."""
        unet, text_encoder = deepcopy(self.denoising.averaged).half()
        return StableDiffusionPipeline(
            vae=deepcopy(self.autoencoder).half(),
            text_encoder=text_encoder,
            tokenizer=self.tokenizer,
            unet=unet,
            scheduler=self.scheduler,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )

    def _run(self, phase: Phase, loss: Callable[[int], torch.Tensor]) -> None:
        begun, first = time.monotonic(), phase.step
        while not phase.done:
            if self.over():
                self.save()
                raise StoppedError
            phase.advance(loss(phase.step))
            if phase.step % _SAY_EVERY == 0:
                speed = (phase.step - first) / (time.monotonic() - begun)
                log.info(
                    "%s: step %d of %d, loss %.4f, %.2f steps/s", phase.name, phase.step, phase.steps, phase.loss, speed
                )
            if phase.done or time.process_time() - self._cpu_mark > _SAVE_EVERY_CPU_S:
                self.save()

    def _autoencoder_loss(self, step: int) -> torch.Tensor:
        pictures = self._crowds(step)
        (autoencoder,) = self.autoencoding.modules
        with _fast_arithmetic():
            latents = autoencoder.encode(pictures).latents
            noise = torch.randn(latents.shape, generator=self._chance(step))
            decoded = autoencoder.decode(latents + _LATENT_NOISE * noise).sample
        error = decoded.float() - pictures
        return error.abs().mean() + 2 * error.square().mean() + _LATENT_PULL * latents.float().square().mean()

    def _measure_autoencoder(self) -> None:
        """Sets the factor that gives latents unit variance, and says how well pictures survive."""
        pictures, _ = self._examples("measure", 0, 128)
        self.autoencoder.register_to_config(scaling_factor=1.0)
        latents = self._latents(pictures)
        with torch.no_grad():
            error = self.autoencoder.decode(latents).sample.clamp(-1, 1) - pictures
        self.autoencoder.register_to_config(scaling_factor=1 / latents.std().item())
        decibels = 10 * math.log10(4 / error.square().mean().item())
        log.info("autoencoder: %.1f dB, latents %.2f +- %.2f", decibels, latents.mean(), latents.std())

    def _denoiser_loss(self, step: int) -> torch.Tensor:
        chance = self._chance(step)
        pictures, captions = self._examples("denoiser", step, self.plan.denoiser_batch)
        latents = self._latents(pictures)
        dropped = torch.rand(len(captions), generator=chance) < _CAPTION_DROPOUT
        prompts = ["" if drop else text for text, drop in zip(captions, dropped.tolist(), strict=True)]
        tokens = self.tokenizer(prompts, padding="max_length", truncation=True, return_tensors="pt").input_ids
        moments = torch.rand(len(captions), generator=chance) ** _TIME_POWER
        times = (moments * self.scheduler.config.num_train_timesteps).long()
        noise = torch.randn(latents.shape, generator=chance)
        noisy = self.scheduler.add_noise(latents, noise, times).to(memory_format=torch.channels_last)
        unet, text_encoder = self.denoising.modules
        # The fused attention of the CPU is slow backwards.
        with _fast_arithmetic(), sdpa_kernel(SDPBackend.MATH):
            velocity = unet(noisy, times, text_encoder(tokens).last_hidden_state).sample
        return nnf.mse_loss(velocity.float(), self.scheduler.get_velocity(latents, noise, times))

    def _latents(self, pictures: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), _fast_arithmetic():
            latents = self.autoencoder.encode(pictures).latents
        return latents.float() * self.autoencoder.config.scaling_factor

    def _examples(self, use: str, step: int, count: int) -> tuple[torch.Tensor, list[str]]:
        """Pictures and their captions, the same at each call."""
        rng = Random(f"{self.plan.seed} {use} {step}")
        scenes = [draw_scene(rng) for _ in range(count)]
        return _channels_last(render(scenes)), [caption(scene, rng) for scene in scenes]

    def _crowds(self, step: int) -> torch.Tensor:
        """What the autoencoder learns from: plain scenes, of which most is easy, and as many crowded ones."""
        rng = Random(f"{self.plan.seed} autoencoder {step}")
        scenes = [draw(rng) for draw in (draw_scene, draw_crowd) for _ in range(self.plan.autoencoder_batch // 2)]
        return _channels_last(render(scenes))

    def _chance(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.plan.seed * 1_000_000_007 + step)

    def _card(self) -> str:
        seen = self.denoising.step * self.plan.denoiser_batch
        return _CARD.format(
            steps=self.denoising.step,
            of=self.denoising.steps,
            pictures=seen,
            autoencoder_steps=self.autoencoding.step,
            cpu_minutes=self.cpu_s / 60,
            plan=", ".join(f"{name} {value}" for name, value in msgspec.structs.asdict(self.plan).items()),
        )


_CARD = """# The demo's picture model

Draws plain shapes on a plain background, 64 x 64 pixels: "a red circle on a blue background", "a small yellow star in
the top left corner on black", "a green square above a pink heart on white". It knows nothing else.

A StableDiffusionPipeline of stock classes, made by `python -m app.demo.train_t2i` from pictures that
`app/demo/shapes.py` draws; no other data is in it. Licence: that of omni-app (Apache-2.0).

Autoencoder {autoencoder_steps} steps, denoiser and text encoder {steps} of {of} steps: {pictures} pictures.
{cpu_minutes:.0f} minutes of one CPU core in all.
Plan: {plan}.

20 steps and a guidance scale of 4 are a good start.
"""


def _channels_last(what: _Movable) -> _Movable:
    return what.to(memory_format=torch.channels_last)


def _fast_arithmetic() -> torch.autocast:
    """bfloat16 where the processor multiplies matrices in it (AMX); elsewhere float32 is a third faster."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu._is_amx_tile_supported())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the demo's picture model from nothing.")
    parser.add_argument("--out", type=Path, required=True, help="directory for the state and the pipeline")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so long; --resume goes on")
    parser.add_argument("--resume", action="store_true", help="go on where the run in --out stopped")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    for name, value in msgspec.structs.asdict(Plan()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help="default: %(default)s")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    deadline = time.monotonic() + arguments.minutes * 60
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    plan = Plan(**{name: getattr(arguments, name) for name in Plan.__struct_fields__})
    trainer = Trainer(plan, arguments.out, over=lambda: bool(ended) or time.monotonic() > deadline)
    if arguments.resume:
        trainer.resume()
    try:
        trainer.train()
    except StoppedError:
        log.info("stopped; --resume goes on")


if __name__ == "__main__":
    main()
