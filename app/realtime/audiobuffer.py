"""The input audio buffer: what a user is saying, cut into turns by the client or by voice activity."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from app.protocol.errors import ApiError
from app.protocol.realtimeaudio import BYTES_MS
from app.protocol.realtimesession import TurnDetection
from app.realtime.activity import FRAME, ONSET, VoiceActivity

LEAST_MS = 100
"""What a model is asked to listen to is not shorter."""


class SpeechStarted(msgspec.Struct, frozen=True):
    """Somebody speaks, from `at_ms` of all the sound of the session on, padding included."""

    at_ms: int


class SpeechStopped(msgspec.Struct, frozen=True):
    """And has done, for as long as was asked for: what is said is what the buffer holds up to `at_ms`."""

    at_ms: int


class InputAudioBuffer:
    """At most `most_s` seconds. `detection`: None leaves turns to the client."""

    def __init__(self, most_s: float, detection: TurnDetection | None) -> None:
        self._most = int(most_s * 1000) * BYTES_MS
        self._held = bytearray()
        self._first = 0
        self._judged = 0
        self._detection = detection
        self._activity = None if detection is None else VoiceActivity(detection)

    def detect(self, detection: TurnDetection | None) -> None:
        """From now on turns are found in another way; what is held stays."""
        if detection == self._detection:
            return
        self._detection = detection
        self._activity = None if detection is None else VoiceActivity(detection)
        self._judged = self._end

    @property
    def _end(self) -> int:
        return self._first + len(self._held)

    @property
    def speaking(self) -> bool:
        """Whether somebody is being heard to speak."""
        return self._activity is not None and self._activity.speaking

    def append(self, samples: bytes) -> None:
        """More sound; `turns` judges it.

        Raises:
            ApiError: 413, the client has to commit first.
        """
        if self._activity is None and len(self._held) + len(samples) > self._most:
            message = f"The buffer holds {self._most // BYTES_MS / 1000:g} s of sound at most (--realtime-max-audio)."
            raise ApiError(413, f"{message} Commit it, or clear it.", param="audio", code="input_audio_buffer_full")
        self._held += samples

    def turns(self) -> Iterator[SpeechStarted | SpeechStopped | None]:
        """What happens in the sound that has not been judged: to be acted on before the next is asked for.

        None comes after every frame in which nothing happens, so that other work can have its turn.
        """
        while (activity := self._activity) is not None and self._judged + FRAME <= self._end:
            at = self._judged - self._first
            change = activity.hear(self._held[at : at + FRAME])
            self._judged += FRAME
            if change == "started":
                self._forget_before(self._judged - ONSET * FRAME - self._padding)
                yield SpeechStarted(self._first // BYTES_MS)
            elif change == "stopped" or (activity.speaking and self._judged - self._first >= self._most):
                activity.end()
                yield SpeechStopped(self._judged // BYTES_MS)
            else:
                if not activity.speaking:
                    self._forget_before(self._judged - ONSET * FRAME - self._padding)
                yield None

    @property
    def _padding(self) -> int:
        return 0 if self._detection is None else self._detection.prefix_padding_ms * BYTES_MS

    def _forget_before(self, position: int) -> None:
        if (count := position - self._first) > 0:
            del self._held[:count]
            self._first = position

    def take_turn(self) -> bytes:
        """What has been said up to SpeechStopped; what comes after it stays."""
        return self._take(self._judged)

    def commit(self) -> bytes:
        """All that is held, as the client wants it.

        Raises:
            ApiError: 400, that is nothing, or too short to listen to.
        """
        if len(self._held) < LEAST_MS * BYTES_MS:
            message = f"The buffer holds {len(self._held) / BYTES_MS:.0f} ms of sound; {LEAST_MS} ms are the least."
            raise ApiError(400, message, code="input_audio_buffer_commit_empty")
        return self._end_turn()

    def clear(self) -> None:
        """Forget what is held."""
        self._end_turn()

    def _end_turn(self) -> bytes:
        if self._activity is not None:
            self._activity.end()
        self._judged = self._end
        return self._take(self._end)

    def _take(self, position: int) -> bytes:
        count = position - self._first
        taken = bytes(self._held[:count])
        self._forget_before(position)
        return taken
