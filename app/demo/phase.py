"""One phase of a training run: the modules it trains, their optimizer, averaged weights, and how far it is."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

_KEPT = 0.999
"""Weight of the past in the averaged weights, once there is enough of it."""
_LOSS_WINDOW = 100


class Phase:
    """Trains modules for a known number of steps: a ramp up, a plateau and a slope down of the learning rate."""

    def __init__(
        self, name: str, modules: list[torch.nn.Module], *, steps: int, rate: float, warm_up: int, decay: float
    ) -> None:
        """`rate` is the highest; the ramp takes `warm_up` steps, the slope the fraction `decay` of all steps."""
        self.name = name
        self.modules = torch.nn.ModuleList(modules).train()
        self.averaged = deepcopy(self.modules).eval().requires_grad_(False)
        self.weights = list(self.modules.parameters())
        self.optimizer = torch.optim.AdamW(self.weights, rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        self.steps = steps
        self.highest_rate = rate
        self.warm_up = warm_up
        self.decay = decay
        self.step = 0
        self.loss = 0.0
        """Running mean."""

    @property
    def done(self) -> bool:
        return self.step >= self.steps

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        left = (self.steps - self.step) / (self.steps * self.decay)
        return self.highest_rate * min(1.0, (self.step + 1) / self.warm_up, left)

    def advance(self, loss: torch.Tensor) -> None:
        """One optimizer step down the gradient of `loss`."""
        self.optimizer.param_groups[0]["lr"] = self.rate
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.step += 1
        kept = min(_KEPT, self.step / (9 + self.step))  # the first weights are noise and soon forgotten
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.parameters()), self.weights, 1 - kept)
        self.loss += (loss.item() - self.loss) / min(self.step, _LOSS_WINDOW)

    def state(self) -> dict[str, Any]:
        """What load() takes: tensors and numbers."""
        return {
            "modules": self.modules.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "loss": self.loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes on where state() was taken."""
        self.modules.load_state_dict(state["modules"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.loss = state["step"], state["loss"]
