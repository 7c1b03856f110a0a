"""Every message that crosses a process boundary: one schema, msgpack on the wire.

Two channels use it (docs/structure.md draws them):

* registry: replicas and API workers (DEALER) talk to the master (ROUTER);
* data: API workers (DEALER) talk to a replica (ROUTER); so do replicas that pull what another one holds.

A wire message is a ZeroMQ multipart: the first frame is one encoded message, further frames are its bulk bytes
(request bodies, call results), which are never copied into the msgpack frame. Large files of an answer do not travel at
all where both ends are on one host: app/cluster/refs.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from app.cluster.refs import Ref

PROTOCOL = 5
"""Raised by one whenever a message changes its meaning; the registry refuses peers that speak another number."""

ReplicaState = Literal["starting", "up", "draining", "suspect", "down"]


class Message(msgspec.Struct, tag=True, tag_field="message_type", array_like=True, omit_defaults=True):
    """Base of all messages: positional fields on the wire, the class name is the tag."""


# --------------------------------------------------------------------------------------------- registry channel


class Register(Message):
    """replica -> master: what this replica is. Sent before the model loads, so that a mismatch is refused at once.

    `config_digest` is the digest of the stage's configuration (settings.schema.stage_digest). `replica_id` is -1 when
    the master shall choose it. `address` is where the replica's ROUTER listens; `host` is for people. `engine` names
    the package that the engine is built on with its version, as settings.engines.engine_of does ("": none). `before`
    is the id that an earlier master chose (-1: none did). `names` are those that it knows the model by. `wanted` is the
    id that its operator gave it (-1: none): it is refused where another replica has that.
    """

    protocol: int
    version: str
    model: str
    stage_id: int
    replica_id: int
    config_digest: str
    address: str
    host: str
    pid: int
    engine: str = ""
    before: int = -1
    names: list[str] = []
    wanted: int = -1

    @property
    def asked_id(self) -> int:
        """The id that it has to get, -1: none."""
        return max(self.replica_id, self.wanted)


class Adapter(msgspec.Struct, array_like=True):
    """A LoRA adapter that every replica of a stage has loaded from `path` and answers for under `name`."""

    stage_id: int
    name: str
    path: str
    is_3d: bool = False


class Welcome(Message):
    """master -> replica: accepted under this id; send a Heartbeat every `heartbeat_s` seconds. Load `adapters`."""

    replica_id: int
    heartbeat_s: float
    adapters: list[Adapter] = []


class Adapters(Message):
    """master -> replicas: these are the adapters from now on, those of other stages among them."""

    adapters: list[Adapter]


class KeepAdapter(Message):
    """API worker -> master: all replicas of its stage have loaded it; so must those that start later."""

    adapter: Adapter


class DropAdapter(Message):
    """API worker -> master: it has been unloaded everywhere."""

    stage_id: int
    name: str


class SetAsleep(Message):
    """API worker -> master: the stage sleeps at this level from now on and takes no requests; 0: it is awake."""

    stage_id: int
    level: int


class Refused(Message):
    """master -> peer: not accepted, with the reason in words; the peer must not try again unchanged."""

    reason: str


class Reregister(Message):
    """master -> replica: I do not know you (I was restarted, or had given you up): register again."""


class Load(msgspec.Struct, array_like=True):
    """What a replica is doing, as it reports it: requests running and waiting, a counter of engine steps, and the bytes
    that it holds for others (app/cluster/refs.py).
    """

    running: int = 0
    waiting: int = 0
    steps: int = 0
    held: int = 0


class Heartbeat(Message):
    """replica -> master: alive. `tick` counts event loop turns of the sender."""

    state: ReplicaState
    tick: int
    load: Load


class Capabilities(msgspec.Struct, array_like=True):
    """What a started engine can do, told to the API workers with the membership.

    tasks: request kinds it answers ("chat", "completion", ...); max_model_len in tokens (0: not applicable);
    input and output modalities in OpenAI's words; slots: requests that it runs at once (0: not limited); instance: a
    name of this one life of the engine, which stands in the ids of what only it holds ("": it holds nothing).
    card: a JSON object, what /v1/models says of the engine's parameters ("": nothing).
    """

    tasks: list[str] = []
    max_model_len: int = 0
    input_modalities: list[str] = []
    output_modalities: list[str] = []
    slots: int = 0
    instance: str = ""
    card: str = ""


class Ready(Message):
    """replica -> master: the engine has started and answers requests."""

    capabilities: Capabilities


class Subscribe(Message):
    """API worker -> master: push Membership to me from now on. `pid` is watched: its death frees its requests."""

    protocol: int
    client_id: str
    pid: int


class ReplicaInfo(msgspec.Struct, array_like=True):
    """One replica as the master sees it.

    `version` and `engine` as it registered them. `since`: Unix time at which it came into its state. `note`: why it is
    down. `local`: the server itself starts it, and again when it has died.
    """

    stage_id: int
    replica_id: int
    address: str
    state: ReplicaState
    host: str
    pid: int
    load: Load
    capabilities: Capabilities
    version: str = ""
    engine: str = ""
    since: float = 0.0
    note: str = ""
    local: bool = False


class Membership(Message):
    """master -> API workers: the whole truth about the replicas. `master_pid` is watched by the workers.

    restarts: (stage_id, replica_id, how often a new process took this place), also for replicas that are down now.
    adapters: names that can be asked for beside the served ones. wanted: (stage_id, replicas that shall run on the
    server's own host). asleep: (stage_id, level) of the stages that sleep.
    """

    version: int
    master_pid: int
    replicas: list[ReplicaInfo]
    restarts: list[tuple[int, int, int]] = []
    adapters: list[Adapter] = []
    wanted: list[tuple[int, int]] = []
    asleep: list[tuple[int, int]] = []


class ClientGone(Message):
    """master -> replicas: this API worker is dead; cancel what it asked for."""

    client_id: str


class Drain(Message):
    """master -> replica: finish what runs within `grace_s` seconds, take no more, then leave."""

    grace_s: float


class Bye(Message):
    """peer -> master: leaving on purpose."""

    reason: str = ""


class Gone(Message):
    """headless command -> master: its replica that listened at `address` has ended; the kernel told."""

    address: str
    reason: str


class Scale(Message):
    """API worker -> master: run so many replicas of a stage on the server's host.

    `devices`: those of the replicas that are added, where they do not share the ones of the stage ("": they do).
    """

    stage_id: int
    replicas: int
    devices: str = ""


# ------------------------------------------------------------------------------------------------- data channel


class Submit(Message):
    """API worker -> replica: start a request. Frame 1: the body (raw JSON for LLM kinds).

    kind names the engine's task ("chat", "completion", ...). credit is the `cost` of events that may be sent before
    a Credit message comes back. `model` is the served name that the client asked for ("" = the default one).
    `refs`: the sender can read the refs of this replica, and sends Release when it has done so. `tensors`: another
    stage waits for what the engine makes for it (Tensors events).
    """

    request_id: str
    kind: str
    model: str = ""
    credit: int = 1 << 20
    refs: bool = False
    tensors: bool = False


class Append(Message):
    """API worker -> replica: more input for a running request. Frame 1: the input (may be empty where it is the last).

    The engine reads it with Request.next_input; what cannot be read in time is bounded (engines.client.MAX_WAITING).
    Tensors of another stage are one pack of app/cluster/tensors.py. Consumed tells how far the engine is.
    """

    request_id: str
    last: bool = False


class Abort(Message):
    """API worker -> replica: stop this request; nothing more is sent for it."""

    request_id: str


class Release(Message):
    """API worker -> replica: the refs that this request produced are no longer needed.

    `through`: the next stage has used its Tensors events up to this number, which makes room for more
    (engines.outflow), and needs only their refs no longer. None: all refs.
    """

    request_id: str
    through: int | None = None


class Credit(Message):
    """API worker -> replica: events of this `cost` were sent to the HTTP client; that much more may come."""

    request_id: str
    amount: int


class Call(Message):
    """API worker -> replica: a question that is not a generation (tokenize, add_lora, ...). Frame 1: JSON arguments."""

    call_id: str
    method: str


class Result(Message):
    """replica -> API worker: answer to a Call. Frame 1: JSON. `failed` is set instead of a frame on error."""

    call_id: str
    failed: Failed | None = None


class Pull(Message):
    """replica -> replica: send me `length` bytes from `offset` of the ref `name`. May be repeated while it is held."""

    transfer: int
    name: str
    offset: int
    length: int


class Pulled(Message):
    """The answer to a Pull of `transfer`. Frame 1: the bytes; no such frame where the ref is held no longer."""

    transfer: int
    offset: int


class Ping(Message):
    """API worker -> replica: I still live; a client silent for CLIENT_LEASE_S loses its requests."""


CLIENT_LEASE_S = 10.0
PING_PERIOD_S = 2.0


# ------------------------------------------------------------------------------- events: what a request's answer is
#
# The answer to a Submit is one ordered sequence: Accepted, then any number of outputs, then Done; or Failed at any
# place, which ends it. Only the API worker writes framing, ids, finish_reason, usage and [DONE].


class Event(msgspec.Struct, tag=True, tag_field="event", array_like=True, omit_defaults=True):
    """Base of all events."""


class Accepted(Event):
    """The engine took the request: whatever only it can judge has been judged. No HTTP head leaves before this."""


class Delta(Event):
    """Plain text of choice `index` (fast path): `tokens` new tokens. Empty text can carry tokens."""

    index: int
    text: str
    tokens: int = 1


class Chunk(Event):
    """One choice object (full path): a JSON object without index, finish_reason and stop_reason.

    For a streamed chat it holds `delta` (and `logprobs`, ...), for a whole answer `message`; for completions `text`.
    """

    index: int
    fields: bytes


class Finish(Event):
    """Choice `index` is complete. `stop_reason` is JSON: the stop string or token id that ended it, or null."""

    index: int
    reason: str
    stop_reason: bytes = b"null"


class Usage(Event):
    """Token counts so far; a later one replaces an earlier one. `details` is JSON of further usage fields, or empty."""

    prompt_tokens: int
    completion_tokens: int
    details: bytes = b""


class Extra(Event):
    """Top-level fields of the answer beyond OpenAI's (prompt_logprobs, ...): a JSON object. Rare."""

    fields: bytes


class Document(Event):
    """The whole answer of an API whose body the engine writes: one JSON value. Nothing but Usage beside it."""

    body: bytes


class Named(Event):
    """One server-sent event of an API whose streams name their events; `data` is a JSON object."""

    name: str
    data: bytes


class Progress(Event):
    """A picture request has done `step` of its `steps` denoising steps."""

    step: int
    steps: int


class Picture(Event):
    """One picture as a file, or as that file in base64 where the task asked for it. `format`: png, jpeg, webp, avif.

    `preview` is the number of a picture that is not finished yet, -1 for a finished one. `seed` is what drew it.
    `ref`: where the data is; on the way between the two processes it stands for data, which is empty then.
    """

    index: int
    data: memoryview
    format: str
    width: int
    height: int
    seed: int
    preview: int = -1
    ref: Ref | None = None


class Audio(Event):
    """The next piece of one sound file, or that piece in base64 where the task asked for it.

    Joined, the pieces of choice `index` are one file of `format` (protocol.speechtask.SpeechFormat) with one header, or
    its base64. A task that is not `streamed` is answered with one piece. `samples`: how many samples a channel this
    piece adds, at `sample_rate` Hz, before they were encoded (a codec may hold some back: then `data` is empty or
    belongs to earlier ones). `transcript`: the text that begins with this piece, "" within a sentence. `ref`: as in
    Picture.
    """

    index: int
    data: memoryview
    format: str
    sample_rate: int
    samples: int
    transcript: str = ""
    ref: Ref | None = None


class Video(Event):
    """A video as a file (MP4), or the next piece of one where the task is `streamed`; joined, they are the file.

    `frames`: how many this event adds, at `fps` frames a second; the rest as in Picture.
    """

    data: memoryview
    width: int
    height: int
    frames: int
    fps: float
    seed: int
    ref: Ref | None = None


Media = Picture | Audio | Video
"""Events whose data may be large, so that it goes by a ref where that is possible."""


class Tensors(Event):
    """What a stage produced for the next one: `packed` is a pack of app/cluster/tensors.py, passed on as it is.

    `number` counts the events of this kind in the request, from 0. `size`: bytes of `packed` and of what the replica
    holds for it. `held`: it holds something, and who gets the event has to see to its Release.
    """

    number: int
    packed: memoryview
    size: int
    held: bool = False


class Consumed(Event):
    """The engine has used the first `count` appended inputs of the request, and needs them no longer."""

    count: int


QUEUE_FULL = "queue_full"
REPLICA_LEAVES = "replica_unavailable"
"""Each the `code` of a Failed that another replica may still accept."""
REPLICA_LOST = "replica_lost"
"""The `code` of what failed because a process went away while it ran."""
INPUT_LOST = "input_lost"
"""The `code` of what failed because what another stage had produced for it is gone."""
INPUT_TIMEOUT = "input_timeout"
"""The `code` of what failed because another stage produced nothing for it in time."""
TENSORS_FULL = "tensors_full"
"""The `code` of what failed because its replica holds all that it may for stages that do not keep up."""


class Done(Event):
    """The last event of a request that worked."""


class Failed(Event):
    """The last event of a request that did not. `status` is the HTTP status; the rest is OpenAI's error body."""

    status: int
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


AnyEvent = (
    Accepted
    | Delta
    | Chunk
    | Finish
    | Usage
    | Extra
    | Document
    | Named
    | Progress
    | Picture
    | Audio
    | Video
    | Tensors
    | Consumed
    | Done
    | Failed
)


_FRAMING = 200
"""Bytes that a chunk costs on the HTTP connection beside its text."""


def cost(event: AnyEvent) -> int:
    """What an event takes out of its request's credit; both sides count by this function, so nothing drifts.

    Credit is for what goes to the HTTP client. Tensors cost nothing: they have a window of their own (Release).
    """
    if isinstance(event, Delta):  # not `match`: patterns with fields cost a microsecond a token
        return len(event.text) + _FRAMING
    if isinstance(event, Chunk | Extra):
        return len(event.fields) + _FRAMING
    if isinstance(event, Named):
        return len(event.data) + _FRAMING
    if isinstance(event, Media):
        return len(event.data)
    return len(event.body) if isinstance(event, Document) else 0


class Events(Message):
    """replica -> API worker: all that happened in one turn of the replica's loop, for all requests of this client."""

    items: list[tuple[str, AnyEvent]]


RegistryMessage = (
    Register
    | Welcome
    | Refused
    | Reregister
    | Heartbeat
    | Ready
    | Subscribe
    | Membership
    | ClientGone
    | Adapters
    | KeepAdapter
    | DropAdapter
    | SetAsleep
    | Drain
    | Bye
    | Gone
    | Scale
)
DataMessage = Submit | Append | Abort | Release | Credit | Call | Result | Ping | Pull | Pulled | Events

_encoder = msgspec.msgpack.Encoder()
_registry_decoder = msgspec.msgpack.Decoder(RegistryMessage)
_data_decoder = msgspec.msgpack.Decoder(DataMessage)


def encode(message: Message) -> bytes:
    """Encode any message; the result is one ZeroMQ frame."""
    return _encoder.encode(message)


def decode_registry(frame: bytes | memoryview) -> RegistryMessage:
    """Decode a frame of the registry channel.

    Raises:
        msgspec.DecodeError: the frame is not one of its messages.
    """
    return _registry_decoder.decode(frame)


def decode_data(frame: bytes | memoryview) -> DataMessage:
    """Decode a frame of the data channel.

    Raises:
        msgspec.DecodeError: the frame is not one of its messages.
    """
    return _data_decoder.decode(frame)
