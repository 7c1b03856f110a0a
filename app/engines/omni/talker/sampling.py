"""The sampling parameters of a talker: those of the request, over the stage's, over the checkpoint's."""

from __future__ import annotations

from typing import Annotated

import msgspec


class TalkerSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Of codec ids. `temperature` 0: always the likeliest; `top_k` 0: of all; `seed` None: never the same twice.

    `max_tokens`: codec ids at most, the one that ends the speech among them.
    """

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.9
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=2)] = 1.05
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 4096
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
