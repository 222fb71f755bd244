"""Pods of manifests that the scheduler would not try, and what it adds to those that name nothing themselves."""

from pathlib import Path

import yaml

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
