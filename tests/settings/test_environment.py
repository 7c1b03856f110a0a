from __future__ import annotations

from app.settings.environment import read


def outcome(
    environ: dict[str, str], typed: dict[str, object] | None = None
) -> tuple[dict[str, object], list[str], list[str]]:
    problems: list[str] = []
    warnings: list[str] = []
    return read(environ, typed or {}, problems, warnings), problems, warnings


def test_values_are_typed() -> None:
    assert outcome({"OMNI_PORT": "9000", "OMNI_ENFORCE_EAGER": "true", "HOME": "/"}) == (
        {"port": 9000, "enforce_eager": True},
        [],
        [],
    )


def test_empty_means_not_set() -> None:
    assert outcome({"OMNI_PORT": ""}) == ({}, [], [])


def test_unknown_names_warn_with_a_near_match() -> None:
    _, problems, warnings = outcome({"OMNI_MODLE": "demo", "OMNI_QQQQQQ": "1"})
    assert problems == []
    assert warnings == [
        "OMNI_MODLE is set, but there is no such setting (did you mean OMNI_MODEL?)",
        "OMNI_QQQQQQ is set, but there is no such setting",
    ]


def test_internal_variables_are_known() -> None:
    assert outcome({"OMNI_RUN_DIR": "/run/x", "OMNI_SETTINGS_FILE": "/x", "OMNI_CACHE_DIR": "/c"}) == ({}, [], [])


def test_a_bad_value_names_the_variable() -> None:
    _, problems, _ = outcome({"OMNI_WORKERS": "two"})
    assert problems == ["OMNI_WORKERS: expected a whole number, got 'two'"]


def test_a_typed_flag_hides_its_variable() -> None:
    assert outcome({"OMNI_WORKERS": "two"}, {"workers": 1}) == ({}, [], [])


def test_kubernetes_service_links_are_refused_by_name() -> None:
    links = {
        "OMNI_PORT": "tcp://10.0.0.7:8091",
        "OMNI_PORT_8091_TCP": "tcp://10.0.0.7:8091",
        "OMNI_PORT_8091_TCP_PROTO": "tcp",
        "OMNI_SERVICE_HOST": "10.0.0.7",
        "OMNI_SERVICE_PORT": "8091",
    }
    values, problems, warnings = outcome(links)
    assert values == {}
    assert warnings == []
    assert len(problems) == 1
    assert "OMNI_PORT=tcp://10.0.0.7:8091" in problems[0]
    assert "enableServiceLinks: false" in problems[0]


def test_a_service_link_is_harmless_when_the_flag_is_typed() -> None:
    assert outcome({"OMNI_PORT": "tcp://10.0.0.7:8091"}, {"port": 9000}) == ({}, [], [])
