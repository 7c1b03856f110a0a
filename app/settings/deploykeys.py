"""Keys of deploy files for what connects stages and for sessions: their form is settled, their use is planned."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_PositiveInt = Annotated[int, msgspec.Meta(gt=0)]


class Connector(msgspec.Struct, forbid_unknown_fields=True):
    """How data goes from one stage to another: a class by name, and its settings."""

    name: str
    extra: dict[str, Any] = {}


class Edge(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """One connection between two stages, by stage id."""

    source: int
    target: int
    window_size: int | None = None
    max_inflight: int | None = None


class DuplexSession(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Limits of sessions that listen and speak at a time. Times in seconds, sizes in bytes."""

    idle_ttl_s: _Positive | None = 300
    disconnect_grace_s: _Positive = 30
    reaper_interval_s: _Positive = 5
    resume_replay_ttl_s: _Positive = 60
    resume_replay_max_bytes_per_session: _PositiveInt = 8 << 20
    max_pending_input_bytes_per_session: _PositiveInt = 16 << 20
    max_pending_turns_per_session: _PositiveInt = 4
    max_sessions: _PositiveInt = 1
    server_vad_model_path: str | None = None
    warmup_frames: Annotated[int, msgspec.Meta(ge=0)] = 0


KEYS: dict[str, Any] = {
    "async_chunk": bool,
    "connectors": dict[str, Connector],
    "edges": list[Edge],
    "custom_voice_dir": str,
    "active_stream_window": Annotated[int, msgspec.Meta(ge=0)],
    "session_mode": Literal["turn", "duplex"],
    "duplex_session": DuplexSession,
    "model_runner": Literal["v1", "v2"],
}
"""The type of each key."""

PLANNED = {
    "async_chunk": 5,
    "connectors": 5,
    "edges": 5,
    "custom_voice_dir": 5,
    "active_stream_window": 5,
    "session_mode": 8,
    "duplex_session": 8,
    "model_runner": 8,
}
"""The part of the project with which each key comes."""
