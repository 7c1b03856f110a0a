"""Bodies that no engine judges: JSON or form fields, taken strictly; what is refused is told with what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from app.protocol.decoding import BodyDecoder, invalid_field, refuse_repeated_keys
from app.protocol.errors import ApiError

T = TypeVar("T")

_OBJECTS = ("lora", "extra_params")
"""Fields that are objects: one JSON text in a form, or parts named lora[name]."""
_MEMBER = re.compile(rf"({'|'.join(_OBJECTS)})\[(\w+)\]", re.ASCII)


class FieldDecoder(BodyDecoder[T]):
    """Decodes the body of one route; made once per route."""

    def __init__(self, model: type[T], refused: Mapping[str, str]) -> None:
        """`refused`: fields that clients send to routes like this one, and why they are refused here."""
        super().__init__(model)
        self._model = model
        self._refused = refused

    def decode(self, body: bytes) -> T:
        """The JSON body as the struct.

        Raises:
            ApiError: 400; `param` is the path of the field at fault.
        """
        try:
            decoded = super().decode(body)
        except ApiError as error:
            raise self._explained(error) from None
        refuse_repeated_keys(body)
        return decoded

    def convert(self, fields: Mapping[str, str]) -> T:
        """The fields of a form as the struct.

        Raises:
            ApiError: as `decode`.
        """
        try:
            return msgspec.convert(_nested(fields), self._model, strict=False)
        except msgspec.ValidationError as error:
            raise self._explained(invalid_field(error)) from None

    def build(self, members: Mapping[str, Any]) -> T:
        """The struct of members that have been decoded already, taken as strictly as `decode` does.

        Raises:
            ApiError: as `decode`.
        """
        try:
            return msgspec.convert(members, self._model)
        except msgspec.ValidationError as error:
            raise self._explained(invalid_field(error)) from None

    def _explained(self, error: ApiError) -> ApiError:
        """The same refusal with the reason, the name that was probably meant, or the values that there are."""
        found = error.body.error
        if found.param is None:
            return error
        name = found.param.rpartition(".")[2]
        if found.code == "unknown_parameter":
            if (reason := self._refused.get(name)) is not None:
                message = f"{found.param} cannot be honoured: {reason}."
                return ApiError(400, message, param=found.param, code="unsupported_parameter")
            siblings = [x for struct in structs_at(self._model, _parent(found.param)) for x in field_names(struct)]
            near = difflib.get_close_matches(name, siblings, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return ApiError(400, found.message + hint, param=found.param, code=found.code)
        if "nvalid enum value" in found.message and (choices := self._choices_at(found.param)):
            message = f"{found.param}: must be one of {', '.join(choices)}."
            hint = _elsewhere(name, found.message, self._model)
            return ApiError(400, message + hint, param=found.param, code=found.code)
        return error

    def _choices_at(self, param: str) -> tuple[str, ...]:
        name = param.rpartition(".")[2].partition("[")[0]
        found = [_choices(struct).get(name, ()) for struct in structs_at(self._model, _parent(param))]
        return tuple(dict.fromkeys(choice for choices in found for choice in choices))


def _parent(param: str) -> str:
    return param.rpartition(".")[0]


def structs_at(model: type[Any], path: str) -> list[type[Any]]:
    """The structs that may stand at a path of a body, such as `audio.input` or `items[0]`; "" is the body itself."""
    found = [model]
    for name in filter(None, re.sub(r"\[[^]]*\]", "", path).split(".")):
        fields = [(struct, field) for struct in found for field in msgspec.structs.fields(struct)]
        hints = [get_type_hints(struct)[field.name] for struct, field in fields if field.encode_name == name]
        found = [inner for hint in hints for inner in _structs_in(hint)]
    return found


def _structs_in(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for option in get_args(hint):
        yield from _structs_in(option)


def _nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """Forms are flat: lora and extra_params come as JSON, or as one part for each of their members."""
    nested: dict[str, Any] = {}
    for name, text in fields.items():
        if (member := _MEMBER.fullmatch(name)) is not None:
            if member[1] in fields:
                message = f"{member[1]} is given as a whole and in parts."
                raise ApiError(400, message, param=member[1], code="invalid_value")
            members = nested.setdefault(member[1], {})
            members[member[2]] = _scalar(text) if member[1] == "extra_params" else text
        elif name in _OBJECTS:
            nested[name] = _object(name, text)
        else:
            nested[name] = text
    return nested


def _object(name: str, text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
        refuse_repeated_keys(text.encode())
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict | list):
        raise ApiError(400, f"{name}: must be an object, written as JSON.", param=name, code="invalid_value")
    return value


def _scalar(text: str) -> Any:
    """Who flattens an object into parts loses the types of its members: 7 and true are taken for what they say."""
    try:
        return msgspec.json.decode(text, type=bool | int | float | None)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return text


def field_names(model: type[Any]) -> tuple[str, ...]:
    """The names of a body's fields."""
    return tuple(field.encode_name for field in msgspec.structs.fields(model))


def _elsewhere(name: str, message: str, model: type[Any]) -> str:
    """response_format says how pictures travel; what kind of file they are is another field's business."""
    if name == "response_format" and any(f"'{x}'" in message for x in _choices(model).get("output_format", ())):
        return " The kind of file is output_format."
    return ""


def _choices(model: type[Any]) -> dict[str, tuple[str, ...]]:
    """The values of the fields that have a few."""
    found = {}
    names = {field.name: field.encode_name for field in msgspec.structs.fields(model)}
    for name, hint in get_type_hints(model).items():
        for option in (hint, *get_args(hint)):
            if get_origin(option) is Literal:
                found[names[name]] = get_args(option)
    return found
