"""WebSocket /v1/realtime/robot/openpi: what a policy is, and how its client is told of mistakes.

The protocol is OpenPI's: the server begins with a description of the policy, then answers each observation with a chunk
of actions, all in msgpack (app.engines.policy.arrays). Errors are text frames, for which its client raises.
"""

from __future__ import annotations

import msgspec

TASK = "act"
"""The kind of the requests, whose body is an observation as it came and whose answer is sent as it is."""


class PolicyCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy takes and gives. `image_size`: the side of the square that its pictures are fitted into, in pixels.

    `action_horizon` actions of `action_dim` numbers are made at a time, of a state of `state_dim` numbers (or fewer,
    unless it is `normalized`), both in the units of the robot where it is, else as the model sees them.
    """

    family: str
    action_horizon: int
    action_dim: int
    state_dim: int
    image_size: int
    num_inference_steps: int
    normalized: bool
