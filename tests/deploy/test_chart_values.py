"""Odd values of the chart: what renders is what the API server takes, and everything else is refused before."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.test_manifests import CHART, DEPLOY, rendered
from tests.tables import each_row

ALL_PARTS: dict[str, Any] = {
    "admissionPolicy": {"enabled": True},
    "nodeAgent": {"enabled": True, "apply": {"enabled": True}, "podMonitor": {"enabled": True, "interval": "30"}},
    "serviceMonitor": {"enabled": True, "interval": "30"},
    "podAuthorPolicy": {"enabled": True},
    "tls": {"secretName": "456"},
    "priorityClassName": "1e3",
    "serviceAccount": {"name": "0x10"},
    "config": {"apiVersion": "koord-numa.io/v1alpha1", "kind": "KoordNumaConfiguration", "lease": {"namespace": "789"}},
}


@each_row("word", ["123", "true", "null", "1e3"])
def test_names_that_yaml_would_convert_stay_strings(word: str) -> None:
    """Helm takes a release and a namespace called ``123``; the API server takes texts only."""
    for manifest in rendered(ALL_PARTS, name=word, namespace=word):
        for path, value in every_value(manifest):
            where = (manifest["kind"], *path)
            if path[-1] in ("name", "namespace", "secretName", "serviceAccountName", "priorityClassName", "interval"):
                assert isinstance(value, str), where
            if "labels" in path[:-1] or "annotations" in path[:-1] or "matchLabels" in path[:-1]:
                assert isinstance(value, str), where


def every_value(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every scalar of a manifest, and where it is."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from every_value(inner, (*path, key))
    else:
        yield path, value


WRONG_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "annotation": ({"podAnnotations": {"a": 1}}, "/podAnnotations/a"),
    "label": ({"podLabels": {"a": True}}, "/podLabels/a"),
    "selector": ({"nodeAgent": {"nodeSelector": {"a": 1}}}, "/nodeAgent/nodeSelector/a"),
    "account": ({"serviceAccount": {"annotations": {"a": 1}}}, "/serviceAccount/annotations/a"),
    "repository": ({"image": {"repository": "a b"}}, "/image/repository"),
    "no image": ({"image": None}, "image"),
    "no configuration": ({"config": None}, "config"),
    "path": ({"nodeAgent": {"kubeletConfig": "config.yaml"}}, "/nodeAgent/kubeletConfig"),
    "no profile": ({"config": {"profiles": []}}, "/config/profiles"),
    "misspelled setting": ({"config": {"bindConcurency": 3}}, "bindConcurency"),
    "setting out of range": ({"config": {"bindConcurrency": 0}}, "/config/bindConcurrency"),
    "unknown word": ({"config": {"profiles": [{"scoringStrategy": {"type": "Most"}}]}}, "/config/profiles/0"),
    "socket": ({"nodeAgent": {"apply": {"criSocket": ""}}}, "/nodeAgent/apply/criSocket"),
}


@each_row(("values", "path"), WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_values_that_the_server_rejects_are_rejected_by_chart(values: dict[str, Any], path: str) -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's library is not installed on this platform")
    with pytest.raises(helm.HelmError, match=path):
        helm.Chart.load(CHART).validate_schema(values)


def test_the_schema_checks_the_current_settings() -> None:
    """``make docs-output`` writes it anew."""
    path = DEPLOY / "tools" / "chart.py"
    spec = importlib.util.spec_from_file_location("chart_tool", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (CHART / "values.schema.json").read_text() == tool.values_schema()
