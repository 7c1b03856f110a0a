"""Rows of the flag table for speech: limits of what one request may say, and the voices that clients upload."""

from __future__ import annotations

from app.settings.flags import Flag
from app.settings.schema import SpeechConfig

_DEFAULT = SpeechConfig()

SPEECH_FLAGS = (
    Flag(
        name="tts-max-instructions-length",
        kind="int",
        group="speech",
        target="speech.tts_max_instructions_length",
        default=_DEFAULT.tts_max_instructions_length,
        least=1,
        commands=("serve",),
        help="Longest instructions for a voice, in characters.",
    ),
    Flag(
        name="max-speech-characters",
        kind="int",
        group="speech",
        target="speech.max_characters",
        default=_DEFAULT.max_characters,
        least=1,
        commands=("serve",),
        help="Longest text of one speech request, in characters; longer ones get 400.",
    ),
    Flag(
        name="speech-batch-max-items",
        kind="int",
        group="speech",
        target="speech.batch_max_items",
        default=_DEFAULT.batch_max_items,
        least=1,
        commands=("serve",),
        help="Most items of one request to /v1/audio/speech/batch.",
    ),
    Flag(
        name="speech-socket-idle-timeout",
        kind="float",
        group="speech",
        target="speech.socket_idle_s",
        default=_DEFAULT.socket_idle_s,
        least=1,
        metavar="SECONDS",
        commands=("serve",),
        help="Silence after which a WebSocket of /v1/audio/speech/stream is closed, while nothing is left to be said.",
    ),
    Flag(
        name="speech-socket-max-characters",
        kind="int",
        group="speech",
        target="speech.socket_max_characters",
        default=_DEFAULT.socket_max_characters,
        least=1,
        commands=("serve",),
        help="Most characters that such a WebSocket takes for all utterances which are not finished yet.",
    ),
    Flag(
        name="voices-database",
        kind="str",
        group="speech",
        target="speech.voices_database",
        default="",
        metavar="URL",
        secret=True,
        commands=("serve",),
        help="Database of the voices that clients upload, as a URL of SQLAlchemy's. Default: an SQLite file, "
        "omni-app/voices.sqlite3 in $XDG_STATE_HOME or ~/.local/state.",
    ),
    Flag(
        name="voices-max",
        kind="int",
        group="speech",
        target="speech.voices_max",
        default=_DEFAULT.voices_max,
        least=1,
        commands=("serve",),
        help="Most voices that are kept.",
    ),
    Flag(
        name="voices-max-bytes",
        kind="size",
        group="speech",
        target="speech.voices_max_bytes",
        default=_DEFAULT.voices_max_bytes,
        least=1 << 20,
        metavar="SIZE",
        commands=("serve",),
        help="Most bytes of their recordings together.",
    ),
    Flag(
        name="voices-policy",
        kind="str",
        group="speech",
        target="speech.voices_policy",
        default=_DEFAULT.voices_policy,
        choices=("overwrite", "immutable"),
        commands=("serve",),
        help="Whether an upload replaces a voice of the same name, or is refused.",
    ),
    Flag(
        name="chat-audio-shape",
        kind="str",
        group="speech",
        target="speech.chat_audio_shape",
        default=_DEFAULT.chat_audio_shape,
        choices=("openai", "vllm-omni"),
        commands=("serve",),
        help="How chats carry their sound: as `audio` beside the text, as OpenAI's clients read it, or as vllm-omni's "
        "do: streamed in chunks of its own, as `content` with `modality` and `audio_metadata`.",
    ),
)
