"""The resolved configuration: plain data, made once by settings.resolve and handed to every process."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

import msgspec

StageKind = Literal["llm", "diffusion", "speech", "generation", "policy", "stub"]
"""generation: a vocoder, which makes sound of codec frames; one pass, no sampling. policy: it moves a robot."""

MODEL_KINDS: tuple[StageKind, ...] = tuple(kind for kind in get_args(StageKind) if kind != "stub")
"""The kinds of stages that have a model."""

ModelStage = Literal["", "thinker", "talker", "aligner"]
"""Which part of its model an llm stage runs: one that answers and hands on what it thinks, or one that speaks that; ""
for all of it. aligner: it times the words of speech, with a model of its own (settings.aligner)."""
LoadBalancing = Literal["random", "round-robin", "least-queue-length", "session-affinity"]
LogLevel = Literal["trace", "debug", "info", "warning", "error", "critical"]


class StageConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One stage of the pipeline. `engine_args` are passed to the engine by its own names, judged by the engine.

    `source` is the model as the user named it where `model` has become a directory of this machine, and so are
    `argument_sources` for engine arguments that are models.
    `max_queue`: requests that may wait in one replica beside those that its engine runs at once; more get a 429.
    `shm_threshold_bytes`: larger results leave a replica through shared memory, where the reader is on its host.
    `sources`: ids of the stages whose output is this stage's input in a request that passes through several; it begins
    with the first piece of that (`async_chunk`) or when it is complete, and fails where nothing comes for
    `input_timeout_s` seconds. `prompt_template` is what a source is asked in the place of the client's prompt, which
    stands in it as {prompt}. `model_stage` is the part of the model that it runs; the pipeline says which.
    `num_replicas`: how many the server starts, or waits for where the stage runs elsewhere (MasterConfig.stage_id).
    `per_platform`: engine arguments that the deploy files set by the kind of device, so that hosts may differ in them.
    """

    stage_id: int
    name: str
    kind: StageKind
    model: str
    model_stage: ModelStage = ""
    source: str = ""
    argument_sources: dict[str, str] = {}
    entry: bool = True
    outputs: list[str] = msgspec.field(default_factory=lambda: ["text"])
    engine_args: dict[str, Any] = {}
    default_sampling_params: dict[str, Any] = {}
    devices: str = ""
    num_replicas: int = 1
    lb_policy: LoadBalancing = "least-queue-length"
    max_queue: int = 1024
    shm_threshold_bytes: int = 8 << 20
    env: dict[str, str] = {}
    sources: list[int] = []
    async_chunk: bool = True
    input_timeout_s: float = 600.0
    prompt_template: str = ""
    per_platform: list[str] = []


class ServerConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the HTTP side needs. Times in seconds, sizes in bytes. `request_timeout_s` 0: no limit.

    `public_base_url` is what links to generated files begin with, "" for the address that the request was sent to.
    `robot_idle_s`: silence of a robot on its socket, 0: no limit.
    """

    host: str = "127.0.0.1"
    port: int = 8091
    workers: int = 1
    root_path: str = ""
    api_keys: list[str] = []
    allowed_origins: list[str] = []
    allowed_methods: list[str] = msgspec.field(default_factory=lambda: ["*"])
    allowed_headers: list[str] = msgspec.field(default_factory=lambda: ["*"])
    allow_credentials: bool = False
    max_header_bytes: int = 64 << 10
    max_body_bytes: int = 256 << 20
    sse_keep_alive_s: float = 15.0
    boot: Literal["blocking", "background"] = "blocking"
    request_id_headers: bool = True
    request_timeout_s: float = 0.0
    slow_client_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 30.0
    max_connections: int = 16384
    uds: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_ca_certs: str = ""
    ssl_cert_reqs: int = 0
    disable_docs: bool = False
    public_base_url: str = ""
    generated_file_lifetime_s: float = 3600.0
    generated_files_bytes: int = 2 << 30
    robot_idle_s: float = 30.0


class MasterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where headless replicas find the master, and how patient it is. Times in seconds. `port` 0: no tcp registry.

    `stage_id` is the only stage that runs on this host, None for all of them; `local_replicas` how many replicas of it,
    and `replica_id` the number of the first one (None: the master numbers them).
    `worker_backend` is who starts the replicas that belong to the server: this host, or the Ray cluster at
    `ray_address` ("": the one that this host is part of).
    """

    address: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    replica_address: str = ""
    encrypt: bool = False
    stage_id: int | None = None
    local_replicas: int | None = None
    replica_id: int | None = None
    worker_backend: Literal["multi_process", "ray"] = "multi_process"
    ray_address: str = ""
    stage_init_timeout: float = 600.0
    init_timeout: float = 900.0
    heartbeat_s: float = 1.0
    heartbeat_timeout: float = 30.0
    stall_timeout: float = 60.0
    shutdown_timeout: float = 30.0

    @property
    def heartbeat_period(self) -> float:
        """What replicas are told: several heartbeats have to fit into the silence that nobody survives."""
        return min(self.heartbeat_s, self.heartbeat_timeout / 3)


class MediaConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a replica loads for the image, audio and video parts of requests, beside data URLs: nothing unless named.

    `allowed_media_domains` are host names, `*.example.org`, or `*`. Limits hold for one part; `max_video_pixels`
    counts the frames together that are taken of a video, or made. Times in seconds, sizes in bytes.
    """

    allowed_media_domains: list[str] = []
    allowed_local_media_path: str = ""
    max_bytes: int = 64 << 20
    max_pixels: int = 178_956_970
    max_video_pixels: int = 512 << 20
    max_seconds: float = 600.0
    timeout_s: float = 30.0
    max_redirects: int = 3


class SpeechConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Speech: limits of what one request may say, and the voices that clients upload. Times in seconds.

    `voices_database` is a database URL as SQLAlchemy reads it, "" for a file of the user's (store.voices.default_file).
    `socket_*` hold for /v1/audio/speech/stream: silence of an idle client, text that waits or is being spoken.
    `realtime_*` hold for /v1/realtime: silence of an idle client, sound that has not been committed, and the size of a
    conversation, in which sound counts as base64.
    `chat_audio_shape`: as whose clients read it the sound stands in the answers of chats.
    """

    tts_max_instructions_length: int = 500
    max_characters: int = 4096
    batch_max_items: int = 32
    socket_idle_s: float = 30.0
    socket_max_characters: int = 64 << 10
    realtime_idle_s: float = 300.0
    realtime_max_audio_s: float = 120.0
    realtime_max_conversation_bytes: int = 16 << 20
    voices_database: str = ""
    voices_max: int = 1000
    voices_max_bytes: int = 2 << 30
    voices_policy: Literal["overwrite", "immutable"] = "overwrite"
    chat_audio_shape: Literal["openai", "vllm-omni"] = "openai"


class LogConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is logged, how, and where. `engine_level` "": what VLLM_LOGGING_LEVEL says, or warning. `file` "": stderr.

    `silent_endpoints` are paths, without a mount's prefix, whose requests get no line in the access log.
    `orch_monitor`: each API worker writes what its orchestrator does to a file of its own.
    """

    level: LogLevel = "info"
    engine_level: LogLevel | Literal[""] = ""
    format: Literal["text", "json"] = "text"
    file: str = ""
    disable_access_log: bool = False
    silent_endpoints: list[str] = []
    orch_monitor: bool = False


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything, resolved. `origins` says where each value came from ("flag --port", "env OMNI_PORT", "default"...).

    `created` is the Unix time at which the server's first worker resolved it; /v1/models reports it.
    """

    model: str
    served_model_names: list[str]
    pipeline: str
    stages: list[StageConfig]
    created: int = 0
    server: ServerConfig = msgspec.field(default_factory=ServerConfig)
    master: MasterConfig = msgspec.field(default_factory=MasterConfig)
    media: MediaConfig = msgspec.field(default_factory=MediaConfig)
    speech: SpeechConfig = msgspec.field(default_factory=SpeechConfig)
    log: LogConfig = msgspec.field(default_factory=LogConfig)
    origins: dict[str, str] = {}

    @property
    def local_stages(self) -> list[StageConfig]:
        """The stages whose replicas the server starts itself."""
        only = self.master.stage_id
        return [stage for stage in self.stages if only in (None, stage.stage_id)]

    @property
    def external_stages(self) -> list[StageConfig]:
        """The stages that run under `omni-app headless` alone."""
        only = self.master.stage_id
        return [stage for stage in self.stages if only not in (None, stage.stage_id)]


NODE_ARGUMENTS = ("nnodes", "node_rank", "master_addr", "master_port")
"""Engine arguments that say on which hosts one replica of a language model runs, and which of them this one is."""


def stage_digest(stage: StageConfig) -> str:
    """Digest of what must be equal on all hosts for replicas of one stage.

    Not devices, counts, environment and caches, nor what only the server acts on: how the stage gets its input. Nor
    what depends on the kind of device: a server without a GPU has stages on hosts with one.
    """
    left_out = {"download_dir", *NODE_ARGUMENTS, *stage.per_platform}
    same = msgspec.structs.replace(
        stage,
        model=stage.source or stage.model,
        source="",
        engine_args={x: y for x, y in (stage.engine_args | stage.argument_sources).items() if x not in left_out},
        argument_sources={},
        devices="",
        num_replicas=1,
        lb_policy="random",
        max_queue=0,
        shm_threshold_bytes=0,
        env={},
        sources=[],
        async_chunk=True,
        input_timeout_s=0,
        prompt_template="",
        per_platform=[],
    )
    return hashlib.sha256(msgspec.json.encode(same, order="deterministic")).hexdigest()[:16]
