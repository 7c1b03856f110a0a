"""Prometheus' text format (0.0.4): our samples written in it, those of replicas taken over with two labels more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.telemetry.families import Family
from app.telemetry.metrics import Labels, Samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def write(samples: Samples) -> Iterator[str]:
    """The lines of all families, those without a sample too."""
    for family, series in samples.items():
        yield f"# HELP {family.name} {family.help}"
        yield f"# TYPE {family.name} {family.kind}"
        for labels, values in sorted(series.items()):
            if family.kind == "histogram":
                yield from _histogram(family, labels, values)
            else:
                yield f"{family.name}{_braces(family.labels, labels)} {_number(values[0])}"


def _histogram(family: Family, labels: Labels, values: list[float]) -> Iterator[str]:
    names = (*family.labels, "le")
    total = 0.0
    for bound, count in zip((*map(_number, family.buckets), "+Inf"), values, strict=False):
        total += count
        yield f"{family.name}_bucket{_braces(names, (*labels, bound))} {_number(total)}"
    yield f"{family.name}_sum{_braces(family.labels, labels)} {_number(values[-1])}"
    yield f"{family.name}_count{_braces(family.labels, labels)} {_number(total)}"


def _braces(names: Iterable[str], values: Iterable[str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def merge(expositions: Iterable[tuple[int, int, str]]) -> Iterator[str]:
    """Those of several replicas (stage, replica, text) as one: each family once, every sample with its origin.

    A text has to be what prometheus_client writes: the samples of a family follow its # HELP and # TYPE.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for stage, replica, text in expositions:
        origin = f'stage="{stage}",replica="{replica}"'
        name = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                head = heads.setdefault(name, [])
                known = bool(head)
            if line.startswith("#"):
                if not known:
                    head.append(line)
            elif line:
                samples.setdefault(name, []).append(_with_origin(line, origin))
    for name, head in heads.items():
        yield from head
        yield from samples.get(name, ())


def _with_origin(sample: str, origin: str) -> str:
    """`name{a="b"} 1` or `name 1` with the labels of `origin` in front; a name holds neither a brace nor a space."""
    brace, space = sample.find("{"), sample.find(" ")
    if 0 <= brace < space:
        comma = "" if sample[brace + 1] == "}" else ","
        return f"{sample[: brace + 1]}{origin}{comma}{sample[brace + 1 :]}"
    return f"{sample[:space]}{{{origin}}}{sample[space:]}"
