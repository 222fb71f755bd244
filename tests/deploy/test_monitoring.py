"""Dashboards and rules ask for series and labels that /metrics has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.app.test_metrics import NODES, scrape
from tests.cluster.objects import until
from tests.e2e.world import pinned, world
from tests.operator.operating import operating
from tests.tables import each_row

ROOT: Final = Path(__file__).parents[2]
MONITORING: Final = ROOT / "deploy" / "monitoring"
DASHBOARDS: Final = sorted((MONITORING / "dashboards").glob("*.json"))
RULES: Final = yaml.safe_load((MONITORING / "rules.yaml").read_text())

SERIES: Final = re.compile(r"\b((?:koord_numa|scheduler|leader_election)_[a-z0-9_]+)\b(?:\{([^}]*)\})?")
GROUPING: Final = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
TARGET_LABELS: Final = {"job", "instance"}
"""Labels that Prometheus adds to every series of a target."""


def queries() -> Iterator[tuple[str, str]]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]


def documented() -> dict[str, set[str]]:
    """Metrics with their labels, as docs/metrics.md names them; a histogram has ``le`` besides."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    found: dict[str, set[str]] = {}
    for name, labels, kind in re.findall(r"^\| `([a-z_0-9]+)(?:\{([^}]*)\})?` \| (\w+) \|", text, re.MULTILINE):
        keys = {label.partition("=")[0] for label in labels.split(",") if label}
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + suffix] = keys | ({"le"} if suffix == "_bucket" else set())
    return found


@each_row(("where", "query"), [pytest.param(*each, id=each[0]) for each in queries()])
def test_queries_ask_for_series_and_labels_that_exist(where: str, query: str) -> None:
    known = documented()
    series = SERIES.findall(query)
    assert series, where
    missing = [name for name, _ in series if name not in known]
    assert missing == []
    labels = {label for name, _ in series for label in known[name]} | TARGET_LABELS
    asked = {key for _, matchers in series for key in re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"', matchers)}
    grouped = {key.strip() for keys in GROUPING.findall(query) for key in keys.split(",")}
    assert asked | grouped <= labels


async def test_every_series_of_a_query_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, NODES) as rack:
        rack.create([pinned("a", 2, policy="SingleNUMANode")])
        async with operating(rack.server, tmp_path, monkeypatch) as runtime:
            await until(lambda: rack.unbound() == [])
            served = {name for path in ("/metrics", "/metrics/nodes") for name, _ in await scrape(runtime, path)}
    # Series of things that have not happened yet appear with the first of them.
    later = {
        "koord_numa_kubelet_refusals_total", "koord_numa_preemptions_total", "koord_numa_rejections_total", "scheduler_unschedulable_pods",
    }  # fmt: skip
    asked = {name for _, query in queries() for name, _ in SERIES.findall(query)}
    assert asked - served - later == set()


def test_dashboards_have_ids_of_their_own() -> None:
    found = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert [each["uid"] for each in found] == [path.stem for path in DASHBOARDS]
    for each in found:
        ids = [panel["id"] for panel in each["panels"]]
        assert len(set(ids)) == len(ids)


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus has it)"
)
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(MONITORING / "rules.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus has it)"
)
def test_promtool_accepts_the_queries_of_dashboards(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables filled in as Grafana does."""
    values = {"$job": ".*", "$__range": "6h", "$__rate_interval": "1m"}
    rules = []
    for number, (_, query) in enumerate(queries()):
        for variable, value in values.items():
            query = query.replace(variable, value)
        rules.append({"record": f"query:{number}", "expr": query})
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_dashboard_is_deployed() -> None:
    listed = yaml.safe_load((MONITORING / "kustomization.yaml").read_text())["configMapGenerator"][0]["files"]
    assert sorted(listed) == [f"dashboards/{path.name}" for path in DASHBOARDS]


def test_the_prometheus_operator_gets_the_same_rules() -> None:
    assert yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())["spec"] == RULES
