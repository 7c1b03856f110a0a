"""pi0: a vision-language model that is asked once, and a flow that turns noise into a chunk of actions.

The computing is that of transformers (PI0ForConditionalGeneration.sample_actions); here is what its processor does,
which needs torchvision, and what it leaves to its users: pictures, text, state and actions in the robot's own units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from PIL import Image

from app.engines.device import compute_device, torch_dtype
from app.engines.policy.observation import Observation, Pixels, State
from app.engines.policy.options import PolicyOptions
from app.engines.refusal import refuse
from app.protocol.robot import PolicyCard
from app.settings.inspection import read_json

Actions = np.ndarray[Any, np.dtype[np.float32]]

_STATISTICS = "processor_config.json"
_TINY = 1e-8
"""Added to a deviation before it divides, as in the processor of transformers."""


class Statistics(msgspec.Struct, frozen=True):
    """Mean and deviation of the states and actions of the robot that the policy was trained on; all given, or none."""

    state_mean: list[float] = []
    state_std: list[float] = []
    actions_mean: list[float] = []
    actions_std: list[float] = []


class Pi0:
    """A loaded policy. `act` is for one thread at a time."""

    def __init__(self, model: Any, tokenizer: Any, statistics: Statistics, steps: int | None) -> None:
        """`steps` of the flow for requests without their own, None for the checkpoint's."""
        config = model.config
        vision = config.vlm_config.vision_config
        self._model = model
        self._tokenizer = tokenizer
        self._statistics = statistics
        self._tokens_per_picture = (vision.image_size // vision.patch_size) ** 2
        self._longest = config.vlm_config.text_config.max_position_embeddings
        self._step: Callable[[], None] | None = None
        model.model.dit.register_forward_pre_hook(self._called)
        self.card = PolicyCard(
            family="pi0",
            action_horizon=config.chunk_size,
            action_dim=len(statistics.actions_mean) or config.max_action_dim,
            state_dim=len(statistics.state_mean) or config.max_state_dim,
            image_size=vision.image_size,
            num_inference_steps=steps or config.num_inference_steps,
            normalized=bool(statistics.state_mean),
        )

    def check(self, observation: Observation) -> None:
        """
        Raises:
            EngineError: 400, this policy cannot act on the observation.
        """
        count, wanted = len(observation.state), self.card.state_dim
        if self.card.normalized and count != wanted:
            refuse(f"the state has {count} numbers; this policy was trained with {wanted}", "state")
        if count > wanted:
            refuse(f"the state has {count} numbers; this policy takes {wanted} at most", "state")
        if (length := len(self._ids(observation))) > self._longest:
            refuse(f"pictures and prompt are {length} tokens; this policy takes {self._longest} at most", "prompt")

    def act(self, observation: Observation, seed: int, step: Callable[[], None]) -> Actions:
        """The next actions, float32 (action_horizon, action_dim), in the units of the robot.

        `step` is called before each step of the flow; what it raises ends the call.
        """
        device, dtype = self._model.device, self._model.dtype
        ids = torch.tensor([self._ids(observation)], device=device)
        pictures = torch.stack([self._pixels(picture) for picture in observation.pictures])
        config = self._model.config
        noise = torch.randn(
            (1, config.chunk_size, config.max_action_dim), generator=torch.Generator().manual_seed(seed)
        )
        self._step = step
        step()
        try:
            actions = self._model.sample_actions(
                state=self._normal(observation.state)[None].to(device, dtype),
                input_ids=ids,
                pixel_values=pictures[None].to(device, dtype),
                noise=noise.to(device, dtype),
                attention_mask=torch.ones_like(ids),
                pixel_attention_mask=torch.ones((1, len(pictures)), dtype=torch.bool, device=device),
                num_steps=observation.sampling.num_inference_steps or self.card.num_inference_steps,
            )
        finally:
            self._step = None
        return self._in_units(actions[0, :, : self.card.action_dim].float().cpu().numpy())

    def _called(self, *_: Any) -> None:
        if self._step is not None:
            self._step()

    def _ids(self, observation: Observation) -> list[int]:
        """As the processor writes it: the places of the pictures, the beginning of a text, the prompt, a new line."""
        pictures = [self._model.config.vlm_config.image_token_id] * self._tokens_per_picture
        prompt = self._tokenizer.encode(observation.prompt.removesuffix("\n") + "\n", add_special_tokens=False)
        return [*pictures * len(observation.pictures), self._tokenizer.bos_token_id, *prompt]

    def _pixels(self, picture: Pixels) -> torch.Tensor:
        """float32 (3, size, size) from -1 to 1; a picture of another shape has black bars, as pi0 was trained."""
        size = self.card.image_size
        image = Image.fromarray(np.ascontiguousarray(picture))
        scale = size / max(image.size)
        fitted = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        square = Image.new("RGB", (size, size))
        scaled = image if fitted == image.size else image.resize(fitted, Image.Resampling.BICUBIC)
        square.paste(scaled, ((size - fitted[0]) // 2, (size - fitted[1]) // 2))
        return torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1).float() / 127.5 - 1

    def _normal(self, state: State) -> torch.Tensor:
        if self.card.normalized:
            state = (state - np.asarray(self._statistics.state_mean)) / (np.asarray(self._statistics.state_std) + _TINY)
        padding = self._model.config.max_state_dim - len(state)
        return torch.nn.functional.pad(torch.from_numpy(state.astype(np.float32)), (0, padding))

    def _in_units(self, actions: Actions) -> Actions:
        if not self.card.normalized:
            return actions
        mean, deviation = np.asarray(self._statistics.actions_mean), np.asarray(self._statistics.actions_std)
        scaled: Actions = (actions * (deviation + _TINY) + mean).astype(np.float32)
        return scaled


def load(directory: Path, options: PolicyOptions) -> Pi0:
    """A checkpoint in the format of transformers.

    Raises:
        ValueError: it lacks something, or its statistics do not fit together.
        OSError: a file of it is missing or broken.
    """
    transformers.logging.disable_progress_bar()
    device = compute_device(options.device)
    dtype = torch_dtype(options.dtype, device)
    model = transformers.PI0ForConditionalGeneration.from_pretrained(directory, dtype=dtype, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if tokenizer.bos_token_id is None:
        raise ValueError(f"{directory}: its tokenizer has no token that begins a text")
    statistics = _statistics(directory, model.config)
    return Pi0(model.to(device).eval(), tokenizer, statistics, options.sampling.num_inference_steps)


def _statistics(directory: Path, config: Any) -> Statistics:
    given: Mapping[str, Any] = read_json(directory / _STATISTICS) or {}
    try:
        found = msgspec.convert(
            {key: given[key] for key in Statistics.__struct_fields__ if key in given}, Statistics, strict=False
        )
    except msgspec.ValidationError as error:
        raise ValueError(f"{directory / _STATISTICS}: {error}") from None
    pairs = (
        (found.state_mean, found.state_std, config.max_state_dim),
        (found.actions_mean, found.actions_std, config.max_action_dim),
    )
    if any(len(mean) != len(deviation) or len(mean) > most for mean, deviation, most in pairs) or (
        bool(found.state_mean) != bool(found.actions_mean)
    ):
        raise ValueError(
            f"{directory / _STATISTICS}: state_mean and state_std, actions_mean and actions_std belong together, with "
            f"up to {config.max_state_dim} and {config.max_action_dim} numbers"
        )
    return found
