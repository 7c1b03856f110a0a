"""Reading YAML and refusing what PyYAML would let pass: duplicate keys, empty files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses a key given twice (PyYAML keeps the last one)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_mapping(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping in a YAML file, and the line of each of its values by key path ("stages[0].devices").

    Raises:
        ValueError: unreadable, not YAML, empty, or not a mapping; the message has the line where there is one.
    """
    try:
        loader = _Loader(path.read_text())
        root = loader.get_single_node()
        lines = dict(_lines(root, ""))
        content = None if root is None else loader.construct_document(root)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"{path}: cannot be read: {reason}") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path}{line}: {error.problem or error}") from None
    except RecursionError:
        raise ValueError(f"{path}: is nested too deeply, or a part of it contains itself") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from None
    if content is None:
        raise ValueError(f"{path}: the file is empty")
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path}: expected a mapping of names to values at the top")
    return content, lines


def _lines(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                where = f"{path}.{key.value}" if path else key.value
                yield where, key.start_mark.line + 1
                yield from _lines(value, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{path}[{index}]", item.start_mark.line + 1
            yield from _lines(item, f"{path}[{index}]")
