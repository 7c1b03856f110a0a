"""The sound of one request on its way out: a file that is made while its samples come, as Audio events."""

from __future__ import annotations

from app.cluster.messages import Audio
from app.engines.base import Request
from app.media.base64pieces import Base64Pieces
from app.media.soundcodecs import Samples
from app.media.soundfile import SoundEncoder
from app.protocol.speechtask import SpeechTask


class SoundPieces:
    """Encodes where `push` and `finish` are called, and emits where `emit` is, in the same order.

    `samples`: how many there are so far, at the model's rate.
    """

    def __init__(self, request: Request, task: SpeechTask, rate: int) -> None:
        """`rate`: that of the model's sound in Hz."""
        self.samples = 0
        self._request = request
        self._task = task
        self._rate = rate
        self._encoder = SoundEncoder(task.format, rate, streamed=task.streamed, file_rate=task.sample_rate)
        self._base64 = Base64Pieces()
        self._told = 0

    def push(self, samples: Samples) -> bytes:
        """Add float32 samples (n,); the bytes of the file that are ready: none yet where it is not streamed."""
        data = self._encoder.push(samples)
        self.samples += len(samples)
        return data

    def finish(self) -> bytes:
        """The rest of the file."""
        return self._encoder.finish()

    def emit(self, data: bytes, total: int, transcript: str = "", *, last: bool = False) -> None:
        """Emit the next piece of the file, with which `total` samples at the model's rate have been made.

        The last one of a stream is left out where it is empty and not the only one.
        """
        piece = self._base64.push(data, last=last) if self._task.base64 else data
        if last and self._told and not (piece or transcript):
            return
        samples = round(total * self._encoder.sample_rate / self._rate) - self._told
        self._told += samples
        self._request.emit(
            Audio(0, memoryview(piece), self._task.format, self._encoder.sample_rate, samples, transcript)
        )
