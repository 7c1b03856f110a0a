"""The demo's voice in a Python loop, no server: `python -m bench.speech_loop`, driven by lines of JSON.

Each line in is a Load, the line out what became of it. "encode" asks for what encoding takes, by format.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

THREADS = 2
"""Sentences that are spoken at the same time, on every side."""
RATE = 24_000
SENTENCES_A_TEXT = 4


@dataclass(frozen=True)
class Load:
    """So many clients for so long, each with one text after the other; texts are counted from `first`."""

    clients: int
    seconds: float
    first: int = 0
    port: int = 0


@dataclass(frozen=True)
class Heard:
    """One text that was spoken: seconds until its first sound and until its last, and of sound."""

    first_s: float
    total_s: float
    audio_s: float


@dataclass(frozen=True)
class Seen:
    """What a load looked like to its clients. `wall_s`: from the first request to the last byte of all."""

    wall_s: float
    heard: list[Heard]

    @classmethod
    def parse(cls, line: str) -> Seen:
        seen = json.loads(line)
        return cls(seen["wall_s"], [Heard(**heard) for heard in seen["heard"]])


def text(number: int) -> str:
    """The text of request `number`: four sentences, in ever other combinations."""
    from tests.hearing import SENTENCES

    return " ".join(SENTENCES[(number * 7 + place * (number // 30 + 1)) % 30] for place in range(SENTENCES_A_TEXT))


def open_voice() -> Any:
    """The voice; calls of it may overlap."""
    from hibari import Hibari

    voice = Hibari()
    voice("Ready.")
    return voice


def pcm(voice: Any, said: str) -> Iterator[bytes]:
    """Samples of 16 bits, one piece a sentence."""
    import numpy as np

    for samples in voice.stream(said, seed=1):
        yield (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def run(voice: Any, load: Load) -> Seen:
    """The load without a server: clients are threads that wait for one of THREADS places at the voice."""
    gate, heard = threading.Semaphore(THREADS), []
    numbers = iter(range(load.first, sys.maxsize))
    begin = time.perf_counter()

    def client() -> None:
        while time.perf_counter() - begin < load.seconds:
            said, asked, first, size = text(next(numbers)), time.perf_counter(), 0.0, 0
            with gate:
                for piece in pcm(voice, said):
                    first = first or time.perf_counter() - asked
                    size += len(piece)
            heard.append(Heard(first, time.perf_counter() - asked, size / 2 / RATE))

    clients = [threading.Thread(target=client) for _ in range(load.clients)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return Seen(time.perf_counter() - begin, heard)


def encoding_ms(voice: Any) -> dict[str, float]:
    """Milliseconds of processor time for a second of sound, by format: the median of five texts."""
    import numpy as np

    from app.media.soundfile import SoundEncoder
    from app.protocol.speechtask import SpeechFormat

    costs: dict[str, float] = {}
    sounds = [np.concatenate(list(voice.stream(text(number), seed=1))) for number in range(5)]
    for format in get_args(SpeechFormat):
        times = []
        for sound in sounds:
            begin = time.process_time()
            encoder = SoundEncoder(format, RATE, streamed=True)
            for part in np.array_split(sound, SENTENCES_A_TEXT):
                encoder.push(part)
            encoder.finish()
            times.append((time.process_time() - begin) / (len(sound) / RATE) * 1000)
        costs[format] = sorted(times)[2]
    return costs


def main() -> None:
    """Answer lines until stdin ends."""
    voice = open_voice()
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = encoding_ms(voice) if "encode" in asked else asdict(run(voice, Load(**asked)))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
