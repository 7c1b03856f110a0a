"""SpeechT5 of transformers with its HiFi-GAN vocoder: any voice, given as the embedding of a speaker."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

from app.engines.soundusage import TOKEN_S
from app.engines.speech.family import Manner, Samples, Step
from app.engines.speech.options import SpeechOptions
from app.engines.speech.torchmodel import Caller, companion, given, load_model
from app.protocol.speechtask import SpeechCard


class SpeechT5Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the spectrum ends: at this probability, and within these numbers of frames for each token of text."""

    threshold: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    minlenratio: Annotated[float, msgspec.Meta(ge=0, le=20)] | None = None
    maxlenratio: Annotated[float, msgspec.Meta(gt=0, le=40)] | None = None


class SpeechT5Speaker:
    """Implements app.engines.speech.family.Speaker."""

    def __init__(self, family: SpeechT5Synthesizer, embedding: NDArray[np.float32], sampling: SpeechT5Sampling) -> None:
        self.text_tokens = 0
        self._family = family
        self._embedding = torch.from_numpy(embedding)[None]
        self._arguments = given(sampling)

    def speak(self, sentence: str, seed: int, step: Step) -> Iterator[Samples]:
        """One piece."""
        ids = self._family.tokenizer(sentence, return_tensors="pt")["input_ids"]
        self.text_tokens += ids.shape[1]
        yield self._family.say(ids, self._embedding, self._arguments, seed, step)


class SpeechT5Synthesizer:
    """Implements app.engines.speech.family.Synthesizer."""

    sampling = SpeechT5Sampling
    parallel = False
    token_s = TOKEN_S

    def __init__(self, model: Any, vocoder: Any, tokenizer: Any, voices: dict[str, NDArray[np.float32]]) -> None:
        self.tokenizer = tokenizer
        self.max_sentence_chars = min(300, model.config.max_text_positions // 2)  # a character is a token, or bytes
        self._model, self._vocoder = model, vocoder
        self._caller = Caller(model.speecht5.encoder, model.speecht5.decoder.wrapped_decoder, vocoder)
        self._voices = voices
        self.card = SpeechCard(
            family="speecht5",
            voices=list(voices),
            default_voice=next(iter(voices), ""),
            sample_rate=vocoder.config.sampling_rate,
            cloning=["embedding"],
            embedding_size=model.config.speaker_embedding_dim,
        )

    def begin(self, manner: Manner) -> SpeechT5Speaker:
        embedding = manner.reference.embedding if manner.reference else None
        return SpeechT5Speaker(self, self._voices[manner.voice] if embedding is None else embedding, manner.sampling)

    def say(
        self, ids: torch.Tensor, embedding: torch.Tensor, arguments: dict[str, Any], seed: int, step: Step
    ) -> Samples:
        """The sound of the tokens `ids`, (1, n), in the voice of `embedding`, (1, embedding_size)."""
        device, dtype = self._model.device, self._model.dtype

        def call() -> torch.Tensor:
            sound: torch.Tensor = self._model.generate_speech(
                ids.to(device), embedding.to(device, dtype), vocoder=self._vocoder, **arguments
            )
            return sound

        return self._caller.call(call, seed, step)


def load(model: str, options: SpeechOptions) -> SpeechT5Synthesizer:
    """
    Raises:
        ValueError: it lacks its vocoder or a package, or a speaker embedding is none.
        OSError: a file of the model is missing or broken.
    """
    if importlib.util.find_spec("sentencepiece") is None:
        raise ValueError("SpeechT5's tokenizer needs the package sentencepiece: pip install sentencepiece")
    directory = companion(model, options, "vocoder")
    if directory is None:
        message = "put it (microsoft/speecht5_hifigan, for one) into vocoder/ of the model, or name it with vocoder"
        raise ValueError(f"SpeechT5 makes spectra and needs a SpeechT5HifiGan that turns them into sound: {message}")
    speech = load_model(SpeechT5ForTextToSpeech, model, options, small=True)
    vocoder = load_model(SpeechT5HifiGan, directory, options, small=True)
    size = speech.config.speaker_embedding_dim
    voices = {name: _embedding(Path(model) / file, size) for name, file in options.speaker_embeddings.items()}
    tokenizer = SpeechT5Tokenizer.from_pretrained(model, local_files_only=True)
    if tokenizer.convert_tokens_to_ids("1") == tokenizer.unk_token_id:
        tokenizer.normalize = True  # numbers in English words are heard; unknown tokens are not
    return SpeechT5Synthesizer(speech, vocoder, tokenizer, voices)


def _embedding(file: Path, size: int) -> NDArray[np.float32]:
    try:
        numbers = np.load(file.expanduser(), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"speaker_embeddings: {file} is no .npy file that can be read: {error}") from None
    if numbers.size != size:
        raise ValueError(f"speaker_embeddings: {file} holds {numbers.size} numbers, not {size}")
    embedding: NDArray[np.float32] = numbers.reshape(-1).astype(np.float32)
    return embedding
