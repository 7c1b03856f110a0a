from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.telemetry import families as f
from app.telemetry.exposition import merge, write
from app.telemetry.metrics import Metrics

NASTY = 'back\\slash "quoted"\nnew line, comma}'


def samples(lines: list[str]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus' own parser reads, without the order of labels."""
    parsed = text_string_to_metric_families("\n".join(lines) + "\n")
    return {(x.name, tuple(sorted(x.labels.items()))): x.value for family in parsed for x in family.samples}


def test_histograms_are_cumulative() -> None:
    metrics = Metrics()
    for seconds in (0.005, 0.02, 0.02, 5000):
        metrics.histogram(f.END_TO_END, "x").observe(seconds)
    read = samples(list(write(metrics.collect())))
    name = f.END_TO_END.name
    buckets = {dict(labels)["le"]: value for (at, labels), value in read.items() if at == f"{name}_bucket"}
    assert (buckets["0.005"], buckets["0.01"], buckets["0.025"], buckets["600"], buckets["+Inf"]) == (1, 1, 3, 3, 4)
    assert read[f"{name}_count", (("model", "x"),)] == 4
    assert read[f"{name}_sum", (("model", "x"),)] == 5000.045


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.value(f.PROMPT_TOKENS, NASTY).add(0.5)
    assert samples(list(write(metrics.collect())))[f.PROMPT_TOKENS.name, (("model", NASTY),)] == 0.5


def test_every_family_is_there_from_the_start() -> None:
    text = "\n".join(write(Metrics().collect())) + "\n"
    read = {family.name for family in text_string_to_metric_families(text)}
    assert read == {family.name.removesuffix("_total") for family in f.COUNTED}


def engine_text(count: int) -> str:
    """What prometheus_client in a replica's process writes."""
    registry = CollectorRegistry()
    tokens = Counter("vllm:tokens", "Tokens # HELP me", ["engine", "model_name"], registry=registry)
    tokens.labels("0", NASTY).inc(count)
    Counter("vllm:bare", "No label", registry=registry).inc(count)
    Histogram("vllm:seconds", "Seconds", ["engine"], buckets=[1, 2], registry=registry).labels("0").observe(1.5)
    return generate_latest(registry).decode()


def test_replicas_become_labels() -> None:
    read = samples(list(merge([(0, 0, engine_text(3)), (1, 2, engine_text(4))])))
    for stage, replica, count in (("0", "0", 3), ("1", "2", 4)):
        origin = (("replica", replica), ("stage", stage))
        assert read["vllm:bare_total", origin] == count
        labels = tuple(sorted([*origin, ("engine", "0"), ("model_name", NASTY)]))
        assert read["vllm:tokens_total", labels] == count
        assert read["vllm:seconds_bucket", tuple(sorted([*origin, ("engine", "0"), ("le", "2.0")]))] == 1


def test_each_family_is_one_group() -> None:
    lines = list(merge([(0, 0, engine_text(3)), (1, 2, engine_text(4))]))
    heads = [line for line in lines if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    groups = [line.split("{")[0] for line in lines if line.startswith("vllm:tokens_total")]
    first = lines.index(next(line for line in lines if line.startswith("vllm:tokens_total")))
    assert [line.split("{")[0] for line in lines[first : first + 2]] == groups == ["vllm:tokens_total"] * 2


def test_no_replica_no_lines() -> None:
    assert list(merge([])) == list(merge([(0, 0, "")])) == []


def test_the_documentation_has_every_family() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `omni_")}
    assert rows.keys() == {family.name for family in (*f.COUNTED, *f.OBSERVED)}
    for family in (*f.COUNTED, *f.OBSERVED):
        assert f"| {family.kind} | {', '.join(family.labels)} |" in rows[family.name]
