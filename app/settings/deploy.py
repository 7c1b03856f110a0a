"""Deploy files: YAML that says how the stages of a pipeline run. Strict: every key and type is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from app.settings.convert import read_old
from app.settings.deploykeys import KEYS, Edge, refusal
from app.settings.flags import by_engine_argument
from app.settings.platforms import PLATFORMS
from app.settings.problems import near
from app.settings.stagefields import StageValues, check_stage, value_path
from app.settings.yamlfile import read_mapping

SHIPPED = Path(__file__).parent.parent / "deploy"

PIPELINE_WIDE = (
    "trust_remote_code",
    "distributed_executor_backend",
    "dtype",
    "quantization",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "pipeline_parallel_size",
    "data_parallel_size",
)
"""Engine arguments that a deploy file may give once for all stages."""

_TOP = ("base_config", "pipeline", "stages", "platforms", *PIPELINE_WIDE, *KEYS)


class Document(msgspec.Struct, kw_only=True):
    """One checked file. `common` are engine arguments for every stage that takes them; `platforms` patch stages.

    `async_chunk` is for all edges, None if the file does not say; `edges` are those under that key, by stage id;
    `connectors` are those under that one, the settings of each by its name. `lines` are those of the top keys.
    `refused` are problems for a pipeline that runs, not for one that cannot.
    """

    name: str
    pipeline: str | None = None
    common: dict[str, Any] = {}
    async_chunk: bool | None = None
    edges: list[tuple[int, int]] = []
    connectors: dict[str, dict[str, Any]] = {}
    stages: dict[int, StageValues] = {}
    platforms: dict[str, dict[int, StageValues]] = {}
    lines: dict[str, int] = {}
    refused: list[str] = []


def find(name: str) -> Path:
    """The file that --deploy-config means: a path, or the bare name of a shipped file.

    Raises:
        ValueError: there is none.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.name == name and (SHIPPED / name).is_file():
        return SHIPPED / name
    shipped = sorted(file.name for file in SHIPPED.glob("*.yaml"))
    raise ValueError(f"there is no file {name}{near(name, shipped)}; shipped files: {', '.join(shipped)}")


def read_chain(path: Path, problems: list[str]) -> list[Document]:
    """A deploy file and its chain of base_config files, strongest first. What is wrong is added to `problems`."""
    documents: list[Document] = []
    seen: set[Path] = set()
    following: Path | None = path
    while following is not None:
        if following.resolve() in seen:
            problems.append(f"{path}: base_config comes back to {following}")
            break
        seen.add(following.resolve())
        try:
            content, lines = read_mapping(following)
        except ValueError as error:
            problems.append(str(error))
            break
        documents.append(_Checker(following, lines, problems).document(content))
        base = content.get("base_config")
        following = _base(following, base) if isinstance(base, str) else None
    return documents


def read_legacy(path: Path, problems: list[str], warnings: list[str]) -> list[Document]:
    """A deploy file of the old form, alone. What has no place in the new one is told in `warnings`."""
    try:
        content, notes, lines = read_old(path)
    except ValueError as error:
        problems.append(str(error))
        return []
    warnings += (f"{path}: {note}" for note in notes)
    return [_Checker(path, lines, problems).document(content)]


def _base(file: Path, name: str) -> Path:
    """What base_config means in a file: another one beside it, or for a bare name a shipped one."""
    path, shipped = file.parent / Path(name).expanduser(), SHIPPED / name
    beside = path.is_file() and path.resolve() != file.resolve()
    return shipped if not beside and Path(name).name == name and shipped.is_file() else path


class _Checker:
    """Checks one file; collects problems that begin with the file and the key path."""

    def __init__(self, path: Path, lines: dict[str, int], problems: list[str]) -> None:
        self._path = path
        self._lines = lines
        self._problems = problems
        self._refused: list[str] = []

    def document(self, content: dict[str, Any]) -> Document:
        if "stage_args" in content:
            self._complain(
                "stage_args is the old format; this prints it in the new one: "
                f"omni-app config --convert {self._path} > NEW.yaml (or give it as --stage-configs-path)"
            )
        for key in content:
            if key not in (*_TOP, "stage_args"):
                self._complain(f"unknown key {key}{near(key, _TOP)}")
        for key in ("base_config", "pipeline"):
            if not isinstance(content.get(key, ""), str):
                self._complain(f"{key}: expected text, got {content[key]!r}")
        known = self._check_keys(content)
        edges = msgspec.convert(known.get("edges", []), list[Edge])
        pipeline = content.get("pipeline")
        return Document(
            name=self._path.name if self._path.parent == SHIPPED else str(self._path),
            pipeline=pipeline if isinstance(pipeline, str) else None,
            common=self._common(content),
            async_chunk=known.get("async_chunk"),
            edges=[(edge.source, edge.target) for edge in edges],
            connectors={name: connector.get("extra", {}) for name, connector in known.get("connectors", {}).items()},
            stages=self._stages(content.get("stages", []), "stages"),
            platforms=self._platforms(content.get("platforms", {})),
            lines=self._lines,
            refused=self._refused,
        )

    def _check_keys(self, content: dict[str, Any]) -> dict[str, Any]:
        """The keys of KEYS that have the right form."""
        known = {}
        for key in KEYS.keys() & content.keys():
            try:
                msgspec.convert(content[key], KEYS[key])
            except msgspec.ValidationError as error:
                self._complain(f"{key}: {error}")
                continue
            known[key] = content[key]
            if reason := refusal(key, content[key]):
                self._refused.append(f"{self._path}: {key}: {reason}")
        return known

    def _common(self, content: dict[str, Any]) -> dict[str, Any]:
        common = {}
        for key in PIPELINE_WIDE:
            if content.get(key) is not None:
                try:
                    common[key] = by_engine_argument()[key].value(content[key])
                except ValueError as error:
                    self._complain(f"{key}: {error}")
        return common

    def _platforms(self, given: Any) -> dict[str, dict[int, StageValues]]:
        if not isinstance(given, dict):
            self._complain(f"platforms: expected a mapping of platforms, got {given!r}")
            return {}
        patches = {}
        for platform, patch in given.items():
            where = f"platforms.{platform}"
            if platform not in PLATFORMS:
                self._complain(f"{where}: unknown platform; known: {', '.join(PLATFORMS)}")
            elif not isinstance(patch, dict) or set(patch) != {"stages"}:
                self._complain(f"{where}: expected a mapping with the one key stages")
            else:
                patches[platform] = self._stages(patch["stages"], f"{where}.stages")
        return patches

    def _stages(self, given: Any, where: str) -> dict[int, StageValues]:
        if not isinstance(given, list):
            self._complain(f"{where}: expected a list of stages, got {given!r}")
            return {}
        stages: dict[int, StageValues] = {}
        for index, entry in enumerate(given):
            place = f"{where}[{index}]"
            stage_id = entry.get("stage_id") if isinstance(entry, dict) else None
            if not isinstance(stage_id, int) or isinstance(stage_id, bool) or stage_id < 0:
                self._complain(f"{place}: each stage needs a stage_id, a whole number from 0")
            elif stage_id in stages:
                self._complain(f"{place}.stage_id: stage {stage_id} is given twice")
            else:
                stages[stage_id] = self._stage(entry, place)
        return stages

    def _stage(self, entry: dict[str, Any], place: str) -> StageValues:
        settings = {key: value for key, value in entry.items() if key != "stage_id"}
        checked = check_stage(settings, f"{self._path}: {place}", self._problems)
        self._refused += checked.refused
        prefix = f"{place}."
        lines = {
            value_path(path.removeprefix(prefix)): line for path, line in self._lines.items() if path.startswith(prefix)
        }
        return msgspec.structs.replace(checked, lines=lines)

    def _complain(self, text: str) -> None:
        self._problems.append(f"{self._path}: {text}")
