"""How an engine tells a client that its request asks for what the model cannot do."""

from __future__ import annotations

from typing import NoReturn

from app.cluster.messages import Failed
from app.engines.base import EngineError


def refuse(message: str, param: str | None) -> NoReturn:
    """Tell the client what is wrong with a field of its request.

    Raises:
        EngineError: always; status 400.
    """
    raise EngineError(Failed(400, message, "invalid_request_error", param))
