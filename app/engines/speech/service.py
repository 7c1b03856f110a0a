"""A loaded speech model that answers requests: from the body of a task to the events of its answer."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing

import msgspec
import numpy as np

from app.cluster.messages import Accepted, Failed, Load
from app.engines.base import EngineError, Request
from app.engines.refusal import refuse
from app.engines.speech.answer import Answer
from app.engines.speech.detect import load_family
from app.engines.speech.family import Reference, Synthesizer
from app.engines.speech.judge import check_sample, judge, with_default_voice
from app.engines.speech.options import SpeechOptions
from app.engines.speech.sampling import sampling_of
from app.engines.speech.script import sentences
from app.engines.speech.turns import Turns
from app.engines.threads import same_number_of_threads
from app.media.errors import MediaError
from app.media.fetch import MediaFetcher
from app.media.recording import read_recording
from app.protocol.speechtask import SpeechCard, VoiceReport, VoiceSample, decode_sample, decode_task
from app.settings.schema import StageConfig

_SEED = 0
"""Of requests that give none: who asks twice, for a file and for a stream, gets the same sound."""


class Service:
    """Takes tasks on the event loop and hands their sentences to the engine's threads."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        card: SpeechCard,
        options: SpeechOptions,
        fetcher: MediaFetcher,
        patience_s: float,
    ) -> None:
        self.card = card
        self.slots = options.max_num_seqs or (min(2, os.cpu_count() or 1) if synthesizer.parallel else 1)
        self._synthesizer = synthesizer
        self._defaults = options.default_sampling_params
        self._longest = options.max_sentence_chars or synthesizer.max_sentence_chars
        self._fetcher = fetcher
        self._patience_s = patience_s
        self._turns = Turns(self.slots, same_number_of_threads())
        self._answers: set[Answer] = set()
        self._busy: set[Answer] = set()
        self._steps = 0

    async def answer(self, request: Request) -> None:
        """Answer one request to its end; cancelling it ends its sound at the model's next step.

        Raises:
            EngineError: it is refused or failed.
        """
        try:
            task = decode_task(request.body)
        except msgspec.DecodeError as error:
            refuse(f"the task is malformed: {error}", None)
        manner = judge(task, self.card, self._synthesizer.sampling, self._defaults)
        if task.sample:
            manner = msgspec.structs.replace(manner, reference=await self._reference(task.sample))
        seed = _SEED if task.seed is None else task.seed
        answer = Answer(request, task, manner, self._synthesizer, self._turns, self._busy, seed, self._tick)
        request.emit(Accepted())
        self._answers.add(answer)
        try:
            async with aclosing(sentences(request, task, self._longest, self._patience_s)) as script:
                await answer.deliver(script)
        finally:
            answer.abandon()
            self._answers.discard(answer)

    async def _reference(self, sample: VoiceSample) -> Reference:
        if sample.embedding:
            return Reference(embedding=np.asarray(sample.embedding, np.float32))
        try:
            data = (await self._fetcher.fetch(sample.url)).data if sample.url else sample.data
            limits, rate = self._fetcher.limits, self.card.sample_rate
            recording = await asyncio.to_thread(read_recording, data, rate=rate, limits=limits)
        except MediaError as error:
            raise error.at(sample.param) from None
        return Reference(recording, sample.text)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """ "check_voice" is answered with the VoiceReport of a VoiceSample that the model can imitate.

        Raises:
            EngineError: it cannot; 404, another method.
        """
        if method != "check_voice":
            raise EngineError(Failed(404, f"a speech engine has no {method}", "not_found_error"))
        sample = decode_sample(arguments)
        check_sample(sample, self.card)
        recording = (await self._reference(sample)).recording
        return msgspec.json.encode(VoiceReport(0.0 if recording is None else len(recording) / self.card.sample_rate))

    def load(self) -> Load:
        """Requests of which a sentence is being spoken, also where nobody wants it any more, or waits for its turn.

        Those that wait for text, or for their client to read, are neither: nothing can be expected of them.
        """
        return Load(len(self._busy), sum(answer.waiting for answer in self._answers), self._steps)

    def _tick(self) -> None:
        self._steps += 1

    def close(self) -> None:
        """Abandon what is being spoken and end the threads; waits for their current step."""
        for answer in self._answers:
            answer.abandon()
        self._turns.close()


def open_service(stage: StageConfig, options: SpeechOptions, fetcher: MediaFetcher) -> Service:
    """Load the stage's model.

    Raises:
        ValueError: the model is of no known family, lacks something, or an option cannot be had with it.
        OSError: a file of the model is missing or broken.
    """
    synthesizer = load_family(stage.model, options)
    card = with_default_voice(synthesizer.card, options.default_voice)
    if options.max_num_seqs > 1 and not synthesizer.parallel:
        message = f"max_num_seqs: {card.family} models speak one sentence at a time; use more replicas for more"
        raise ValueError(message)
    try:
        sampling_of(synthesizer.sampling, options.default_sampling_params, {}, card.family)
    except EngineError as error:
        raise ValueError(f"default_sampling_params: {error}") from None
    return Service(synthesizer, card, options, fetcher, stage.input_timeout_s)
