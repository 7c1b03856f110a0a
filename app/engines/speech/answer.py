"""One request of a speech stage: its sentences are spoken one by one, and leave as pieces of one sound file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from app.cluster.messages import Done, Usage
from app.engines.base import Request
from app.engines.refusal import refuse
from app.engines.soundpieces import SoundPieces
from app.engines.soundusage import audio_tokens, sound_usage
from app.engines.speech.family import AbandonedError, Manner, Samples, Speaker, Synthesizer
from app.engines.speech.sentences import spoken
from app.engines.speech.turns import Turns
from app.protocol.speechtask import SpeechTask

_SEEDS = 1 << 63


class Answer:
    """The events of one request. `waiting`: a sentence of it is in the threads' line.

    A request has one sentence at a time in the line for the threads, so requests take turns, however long their texts
    are; who has heard least of what would be heard by now goes first.
    """

    def __init__(
        self,
        request: Request,
        task: SpeechTask,
        manner: Manner,
        synthesizer: Synthesizer,
        turns: Turns,
        busy: set[Answer],
        seed: int,
        tick: Callable[[], None],
    ) -> None:
        """It is in `busy` while a sentence of it is spoken. `tick` is called for every sign of life, on any thread.

        Raises:
            EngineError: 400, the manner asks for what the model has not.
        """
        self.waiting = False
        self._request = request
        self._task = task
        self._manner = manner
        self._synthesizer = synthesizer
        self._speaker: Speaker = synthesizer.begin(manner)
        self._turns = turns
        self._busy = busy
        self._seed = seed
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._rate = synthesizer.card.sample_rate
        self._sound = SoundPieces(request, task, self._rate)
        self._abandoned = False
        self._sentences = 0
        self._transcript = ""

    def abandon(self) -> None:
        """Nobody listens any more: what is being spoken ends at the model's next step."""
        self._abandoned = True

    async def deliver(self, sentences: AsyncIterator[str]) -> None:
        """Speak them all, and emit everything but Accepted.

        Raises:
            EngineError: there was nothing that this voice can say, or a sentence failed.
        """
        async for sentence in sentences:
            self._transcript += sentence  # it goes with the next sound, also where it has none itself
            if text := spoken(sentence):
                await self._request.ready()
                await self._take_turn(text)
        if not self._sound.samples and not self._task.appended:
            refuse("the voice has no sound for anything in the input; is it in another language?", "input")
        self._piece(await asyncio.to_thread(self._sound.finish), self._sound.samples, last=True)
        self._request.emit(self._usage())
        self._request.emit(Done())

    async def _take_turn(self, text: str) -> None:
        self.waiting = True
        try:
            await self._turns.take(self._arrived + self._sound.samples / self._rate, partial(self._speak, text))
        finally:
            self.waiting = False

    # ------------------------------------------------------------------------------------------------ engine's threads

    def _speak(self, text: str) -> None:
        self.waiting = False
        self._busy.add(self)
        try:
            seed = (self._seed + self._sentences) % _SEEDS
            self._sentences += 1
            for samples in self._speaker.speak(text, seed, self._step):
                self._encode(samples)
        finally:
            self._busy.discard(self)

    def _step(self) -> None:
        self._tick()
        if self._abandoned:
            raise AbandonedError

    def _encode(self, samples: Samples) -> None:
        data = self._sound.push(samples)
        if self._task.streamed and len(samples):
            self._loop.call_soon_threadsafe(self._piece, data, self._sound.samples)

    # ------------------------------------------------------------------------------------------------ event loop

    def _piece(self, data: bytes, total: int, *, last: bool = False) -> None:
        if not self._abandoned:
            transcript, self._transcript = self._transcript, ""
            self._sound.emit(data, total, transcript, last=last)

    def _usage(self) -> Usage:
        recording = self._manner.reference.recording if self._manner.reference else None
        token_s = self._synthesizer.token_s
        heard = 0 if recording is None else audio_tokens(len(recording), self._rate, token_s)
        return sound_usage(self._speaker.text_tokens, audio_tokens(self._sound.samples, self._rate, token_s), heard)
