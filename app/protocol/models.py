"""GET /v1/models: the models that can be asked for, as OpenAI's model objects with what a client wants to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from app.cluster.messages import Capabilities
from app.protocol.errors import ApiError
from app.settings.schema import Settings

OWNER = "omni-app"


class Model(msgspec.Struct):
    """`root` is what is loaded under this name; the name of an adapter has a `parent`, the model that it adapts.

    `max_model_len` in tokens, None where it does not apply or is not yet known; modalities and tasks are those of the
    whole pipeline, empty until a replica has told them. `card` is what the engine tells of its parameters, if it does.
    """

    id: str
    created: int
    root: str
    max_model_len: int | None
    tasks: list[str]
    input_modalities: list[str]
    output_modalities: list[str]
    parent: str | None = None
    card: dict[str, Any] | None = None
    object: Literal["model"] = "model"
    owned_by: str = OWNER


class ModelList(msgspec.Struct):
    """The body of GET /v1/models."""

    data: list[Model]
    object: Literal["list"] = "list"


def served_models(settings: Settings, capabilities: Capabilities, adapters: Sequence[str] = ()) -> list[Model]:
    """One model object for each served name, the first name first, then one for each loaded adapter."""

    card = msgspec.json.decode(capabilities.card) if capabilities.card else None

    def model(name: str, parent: str | None = None) -> Model:
        return Model(
            id=name,
            created=settings.created,
            root=settings.model,
            parent=parent,
            max_model_len=capabilities.max_model_len or None,
            tasks=capabilities.tasks,
            input_modalities=capabilities.input_modalities,
            output_modalities=capabilities.output_modalities,
            card=card,
        )

    names = settings.served_model_names
    return [*(model(name) for name in names), *(model(name, parent=names[0]) for name in adapters)]


def served_name(names: Sequence[str], asked: str | None) -> str:
    """The name under which the answer reports its model: the one asked for, or the first of `names`.

    Raises:
        ApiError: 404 model_not_found, naming what is served.
    """
    if asked is None:
        return names[0]
    if asked not in names:
        served = ", ".join(repr(name) for name in names)
        message = f"The model {asked!r} is not served here; this server has {served}."
        raise ApiError(404, message, param="model", code="model_not_found")
    return asked
