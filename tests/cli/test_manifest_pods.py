"""Pods of manifests that the scheduler would not try, and what it adds to those that name nothing themselves."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from tests.cli.small import ask, pod, small_cluster


async def test_gated_and_leaving_pods_are_not_tried(tmp_path: Path) -> None:
    gated = pod("gated", 2)
    gated["spec"]["schedulingGates"] = [{"name": "example.org/later"}]
    leaving = pod("leaving", 2)
    leaving["metadata"]["finalizers"] = ["example.org/stay"]
    async with small_cluster(tmp_path, gated, leaving) as cluster:
        cluster.server.store.delete("pods", "leaving", "default")
        explained = [await ask(cluster, "explain", name) for name in ("gated", "leaving")]
        simulated = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(gated))
    assert [answer.output.splitlines()[1:-1] for answer in explained] == [
        ["  the pod waits for its scheduling gates"],
        ["  the pod is being deleted"],
    ]
    assert simulated.output.splitlines()[1:] == [
        "  the pod waits for its scheduling gates",
        "",
        "0 of 1 pods would be placed.",
    ]


async def test_the_pods_of_a_deployment_are_spread_by_default(tmp_path: Path) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("", 1)["spec"]}
    del template["spec"]["containers"][0]["resources"]["limits"]  # so that NUMA nodes do not matter
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    async with small_cluster(tmp_path) as cluster:
        names = [obj["metadata"]["name"] for obj in cluster.server.store.list("nodes")]
        for name in names:
            cluster.server.store.patch("nodes", name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        answer = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(deployment))
    lines = answer.output.splitlines()
    assert {line.split(",")[0].strip() for line in lines[1:4:2]} == set(names)


HOSTILE: dict[str, object] = {
    "metadata of a pod": {"apiVersion": "v1", "kind": "Pod", "metadata": 3},
    "list as kind": {"kind": [{}], "metadata": {"name": "a"}},
    "metadata of a workload": {"kind": "Deployment", "metadata": [], "spec": {"template": {}}},
    "metadata of a template": {
        "kind": "Deployment",
        "metadata": {"name": "a"},
        "spec": {"template": {"metadata": "x"}},
    },
    "truth as replicas": {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": True, "template": {}}},
    "claims of a set": {
        "kind": "StatefulSet",
        "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"volumes": [3]}}, "volumeClaimTemplates": [{"metadata": 3}]},
    },
    "volumes of a set": {
        "kind": "StatefulSet",
        "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"volumes": [3]}}, "volumeClaimTemplates": [{"metadata": {"name": "b"}}]},
    },
    "a claim without a pod's name": {
        "kind": "List",
        "items": [
            {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"metadata": 3, "spec": {}}},
            {"kind": "Pod", "metadata": {}, "spec": {"resourceClaims": [{"resourceClaimTemplateName": "t"}]}},
        ],
    },
}


def test_keys_of_pods_on_a_workload_are_reported(tmp_path: Path) -> None:
    labels = {"app": "web", "koordinator.sh/qosClass": "LSR"}
    annotations = {"scheduling.koordinator.sh/numa-topology-spec": "{}", "example.org/other": "x"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels, "annotations": annotations},
        "spec": {"selector": {}, "template": {"metadata": {"labels": labels}, "spec": pod("", 1)["spec"]}},
    }
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(deployment))
    (tmp_path / "cluster.yaml").write_text(
        yaml.safe_dump({"kind": "PriorityClass", "metadata": {"name": "x"}, "value": 1})
    )
    arguments = ["simulate", "--from", str(tmp_path / "cluster.yaml"), "-f", str(tmp_path / "web.yaml")]
    told = CliRunner().invoke(main, arguments).output
    key = "scheduling.koordinator.sh/numa-topology-spec"
    assert f"Deployment web: annotation {key} is not read; it belongs to spec.template.metadata.annotations\n" in told
    assert told.count("is not read") == 1


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE.keys())
def test_manifests_of_any_shape_get_a_sentence(document: object, tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text("{apiVersion: v1, kind: Node, metadata: {name: n}}")
    answer = CliRunner().invoke(main, ["simulate", "-f", "-", "--from", str(node)], input=yaml.safe_dump(document))
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.exit_code == 1, answer.output
