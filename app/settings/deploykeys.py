"""Keys at the top of deploy files for what connects stages and for sessions: their form, and why some are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.settings.problems import near

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_PositiveInt = Annotated[int, msgspec.Meta(gt=0)]


class Connector(msgspec.Struct, forbid_unknown_fields=True):
    """How vllm-omni takes data from one stage to another: a class by name, and its settings."""

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

SHARED_MEMORY = "SharedMemoryConnector"
"""The connector of vllm-omni that does what is done here in any case."""

_STORE = "a Mooncake store and its metadata server beside this one"
_YUANRONG = "Huawei's openYuanrong datasystem, for Ascend NPUs"
OTHER_CONNECTORS = {
    "MooncakeStoreConnector": _STORE,
    "MooncakeConnector": _STORE,
    "MooncakeTransferEngineConnector": "Mooncake's transfer engine on both hosts, for RDMA between registered buffers",
    "MoriTransferEngineConnector": "AMD's MORI on both hosts, for RDMA or xGMI between their GPUs",
    "NixlConnector": "NVIDIA's NIXL with UCX on both hosts, which moves tensors between GPUs without this server",
    "YuanrongConnector": _YUANRONG,
    "YuanrongTransferEngineConnector": _YUANRONG,
}
"""The other connectors of vllm-omni, and what each needs that this server does not use."""
_INSTEAD = (
    f"between processes of one host data goes through shared memory ({SHARED_MEMORY}), between hosts straight from "
    "replica to replica over TCP, in both cases without a connector: remove it"
)

CHUNKS = ("codec_chunk_frames", "initial_codec_chunk_frames", "codec_left_context_frames")
"""Settings of a connector that say how a vocoder cuts what it is fed: they become arguments of that stage's engine."""

_DUPLEX = "no model here listens and speaks at a time; conversations on /v1/realtime take turns: remove it"
_NEVER = {
    "custom_voice_dir": "voices are no files of a directory; upload them with POST /v1/audio/voices",
    "session_mode": _DUPLEX,
    "duplex_session": _DUPLEX,
    "model_runner": "vLLM chooses its runner; VLLM_USE_V2_MODEL_RUNNER (0 or 1) in the environment decides: remove it",
    "active_stream_window": "how much a stage does at the same time is its max_num_seqs; remove it",
}


def refusal(key: str, value: Any) -> str:
    """Why a pipeline that runs cannot have this value of a key, which is of the right type; "" if it can."""
    if key == "session_mode" and value == "turn":  # as it is here
        return ""
    if key == "connectors":
        return _of_connectors(msgspec.convert(value, KEYS[key]))
    if key == "edges" and any(edge.window_size or edge.max_inflight for edge in msgspec.convert(value, KEYS[key])):
        return (
            "what may wait between two stages is bounded in bytes by the server itself: remove window_size and "
            "max_inflight"
        )
    return _NEVER.get(key, "")


def _of_connectors(connectors: dict[str, Connector]) -> str:
    for name, connector in connectors.items():
        if connector.name != SHARED_MEMORY:
            what = OTHER_CONNECTORS.get(connector.name)
            if what is None:
                known = [SHARED_MEMORY, *OTHER_CONNECTORS]
                return f"{name}: there is no connector {connector.name}{near(connector.name, known)}; {_INSTEAD}"
            return f"{name}: {connector.name} is not here: it needs {what}; {_INSTEAD}"
        if others := [key for key in connector.extra if key not in CHUNKS]:
            return (
                f"{name}.extra: {', '.join(others)} are settings of models that vllm-omni runs in its own way; remove "
                f"them (what is taken here: {', '.join(CHUNKS)})"
            )
    return ""
