"""A response with the settings of a session that nobody has changed."""

from __future__ import annotations

import json
from typing import Any

from app.protocol.realtimeitems import Item
from app.protocol.realtimeresponse import Asked, ResponseParams, asked_of
from app.protocol.realtimesession import Session
from app.realtime.prompt import chat_body


def asked(**params: Any) -> Asked:
    session = Session(id="sess_1", model="m", output_modalities=["text"])
    return asked_of(session, ResponseParams(**params), [])


def messages_of(*items: Item) -> Any:
    """The messages of the chat that answers the items."""
    return json.loads(chat_body(asked(), items))["messages"]
