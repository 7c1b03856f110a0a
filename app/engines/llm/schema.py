"""What a request body of one task must look like: vLLM's request classes, and our rules about unknown fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

import pydantic

from app.engines.llm import bodies
from app.engines.llm.bodies import Json, Rule
from app.engines.llm.errors import bad_request


class Schema:
    """Judges the bodies of one task.

    `kind` is a request class of vLLM's, or a union of which a body has to fit one. `prompt` names the field that holds
    the prompt. Fields in `refused` have to keep the rule there; those in `ignored` have no effect here.
    """

    def __init__(
        self,
        kind: Any,
        *,
        prompt: str,
        refused: Mapping[str, Rule] | None = None,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        self.prompt = prompt
        self._validate = pydantic.TypeAdapter(kind).validate_python
        self._models = list(_models(kind))
        self._fields = frozenset(name for model in self._models for name in model.model_fields)
        self._required = frozenset(
            name for model in self._models for name, field in model.model_fields.items() if field.is_required()
        )
        self._refused = refused or {}
        self._known = self._fields | self._refused.keys() | ignored

    def parse(self, body: bytes) -> Any:
        """The request in `body`, an object of (one of) vLLM's request classes.

        Raises:
            EngineError: 400, with the path of the wrong field as `param`.
        """
        return self.judge(bodies.decode(body))

    def judge(self, data: Json) -> Any:
        """The same of a body that has been decoded.

        Raises:
            EngineError: as `parse`.
        """
        bodies.refuse_unsupported(data, self._refused)
        bodies.refuse_unknown(data, self._known, "")
        self._refuse_empty(data)
        return bodies.validate(self._present(data), self._validate, self._models, prompt=self.prompt)

    def _refuse_empty(self, data: Json) -> None:
        if data.get(self.prompt) in ("", []):
            raise bad_request(f"{self.prompt} must not be empty", param=self.prompt, code="invalid_value")

    def _present(self, data: Json) -> Json:
        """The fields that vLLM knows; a null counts as left out where a field may be left out."""
        return {
            name: value
            for name, value in data.items()
            if name in self._fields and (value is not None or name in self._required)
        }


def _models(kind: Any) -> Iterator[type[pydantic.BaseModel]]:
    """The classes in a (nested, annotated) union."""
    if isinstance(kind, type):
        yield kind
        return
    members = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    for member in members:
        yield from _models(member)
