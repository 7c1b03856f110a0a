"""Exceptions of a pipeline, in words for the client."""

from __future__ import annotations

import logging

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.engines.device import is_out_of_memory, out_of_memory

logger = logging.getLogger("app.diffusion")

_LONGEST = 500


class AbandonedError(Exception):
    """Nobody wants the pictures of this call any more; raised inside of the pipeline to leave it."""


def explain(error: Exception, began: bool) -> EngineError:
    """What the client is told. `began`: the denoising had begun, so the arguments had passed the pipeline's checks."""
    if isinstance(error, EngineError):
        return error
    if is_out_of_memory(error):
        return out_of_memory("request", "ask for a smaller size or fewer pictures")
    if isinstance(error, ValueError) and not began:
        return EngineError(Failed(400, str(error).strip()[:_LONGEST], "invalid_request_error"))
    if isinstance(error, AssertionError) and "divisible by mesh size" in str(error):
        message = (
            "this size, or a prompt of this length, cannot be split evenly over the GPUs of the server; others can, "
            "and all of them with --ulysses-mode advanced_uaa"
        )
        return EngineError(Failed(400, message, "invalid_request_error", code="unsupported_size"))
    logger.error("a pipeline call failed", exc_info=error)
    return EngineError(Failed(500, f"{type(error).__name__} in the pipeline; see the server's log"))
