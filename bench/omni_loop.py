"""transformers' `generate` on an omni model, no server: `python -m bench.omni_loop MODEL`, driven by lines of JSON.

Each line in is a Load, the line out what became of it. transformers generates sound for one conversation at a time, so
several clients wait for each other.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RATE = 24_000
VOICE = "Chelsie"
TOKENS, CODES = 32, 100
"""What every answer has: tokens of text, and codes of sound, two seconds of it."""
_WORDS = ("river", "window", "garden", "engine", "letter", "winter", "market", "silver")


@dataclass(frozen=True)
class Load:
    """So many clients, each with so many conversations one after the other; they are counted from `first`."""

    clients: int
    rounds: int
    first: int = 0
    port: int = 0


@dataclass(frozen=True)
class Heard:
    """One answer: seconds until its first text, its first sound and its end, and what it holds."""

    text_s: float
    first_s: float
    total_s: float
    audio_s: float
    tokens: int


@dataclass(frozen=True)
class Seen:
    """What a load looked like to its clients. `wall_s`: from the first request to the end of the last answer."""

    wall_s: float
    heard: list[Heard]

    @classmethod
    def parse(cls, line: str) -> Seen:
        seen = json.loads(line)
        return cls(seen["wall_s"], [Heard(**heard) for heard in seen["heard"]])


def question(number: int) -> str:
    """What conversation `number` asks: no two begin alike, so that nobody has a prefix in a cache."""
    words = " ".join(_WORDS[(number // 8**place) % 8] for place in range(4))
    return f"{number}: tell me of {words}."


class Reference:
    """The model, as transformers' documentation runs it: greedy, on all of the machine's cores."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer, Qwen2_5OmniForConditionalGeneration

        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._model = Qwen2_5OmniForConditionalGeneration.from_pretrained(model).eval()
        self._gate = threading.Lock()

    def answer(self, number: int, asked: float) -> Heard:
        """Seconds count from `asked`: waiting for the others is part of them."""
        import torch

        with self._gate, torch.inference_mode():
            message = [{"role": "user", "content": question(number)}]
            prompt = self._tokenizer.apply_chat_template(
                message, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
            first = _First()
            tokens, sound = self._model.generate(
                **prompt,
                speaker=VOICE,
                thinker_max_new_tokens=TOKENS,
                thinker_do_sample=False,
                thinker_streamer=first,
                talker_max_new_tokens=CODES,
                talker_do_sample=False,
            )
            ended = time.perf_counter()
        written = tokens.shape[1] - prompt["input_ids"].shape[1]
        return Heard(first.at - asked, ended - asked, ended - asked, sound.numel() / RATE, written)


class _First:
    """A streamer of transformers' that only looks when the first token comes; the prompt is put before it."""

    def __init__(self) -> None:
        self.at = 0.0
        self._puts = 0

    def put(self, value: Any) -> None:
        self._puts += 1
        if self._puts == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Nothing is held back."""


def run(model: Reference, load: Load) -> Seen:
    """The load: clients are threads that wait for the model."""
    heard: list[Heard] = []

    def client(place: int) -> None:
        first = load.first + place * load.rounds
        heard.extend(model.answer(number, time.perf_counter()) for number in range(first, first + load.rounds))

    begin = time.perf_counter()
    threads = [threading.Thread(target=client, args=(place,)) for place in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Seen(time.perf_counter() - begin, heard)


def main() -> None:
    """Serve loads until stdin ends."""
    import torch

    torch.set_num_threads(int(sys.argv[2]))
    model = Reference(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(run(model, Load(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
