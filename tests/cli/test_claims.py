"""Claims on the command line: simulate makes claims of templates as the controller does, and names the devices that pods would get."""

import json
from pathlib import Path

import yaml
from click.testing import CliRunner

from koord_numa.cli import main

CLUSTER = """
{apiVersion: v1, kind: Node, metadata: {name: n1, uid: u1}, status: {allocatable: {cpu: "16", memory: 64Gi, pods: "110"}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-gpu}
spec:
  {driver: gpu.example.com, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}, {name: gpu-1}]}
"""
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}},
}
POD_SPEC = {
    "schedulerName": "koord-numa",
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
    "containers": [
        {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}
    ],
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "train"},
    "spec": {"replicas": 3, "selector": {}, "template": {"spec": POD_SPEC}},
}


def simulate(folder: Path, *options: str, in_cluster: bool = False) -> str:
    """The output of ``simulate``; the template is in the cluster already or in the manifest."""
    template = yaml.safe_dump(TEMPLATE)
    (folder / "cluster.yaml").write_text(CLUSTER + ("---\n" + template if in_cluster else ""))
    (folder / "pods.yaml").write_text(yaml.safe_dump(DEPLOYMENT) + ("" if in_cluster else "---\n" + template))
    files = ["-f", str(folder / "pods.yaml"), "--from", str(folder / "cluster.yaml")]
    return CliRunner().invoke(main, ["simulate", *files, *options]).output


def test_every_pod_of_a_deployment_has_a_claim_of_its_own(tmp_path: Path) -> None:
    said = simulate(tmp_path)
    assert "n1, gpu.example.com gpu-0" in said
    assert "n1, gpu.example.com gpu-1" in said
    assert "claim gpu, request gpu: 1 wanted, 2 of 2 devices match, 0 free" in said
    assert "2 of 3 pods would be placed" in said


def test_templates_of_the_cluster_count_and_devices_are_named(tmp_path: Path) -> None:
    listed = json.loads(simulate(tmp_path, "-o", "json", in_cluster=True))
    devices = [item.get("devices") for item in listed["items"]]
    assert devices == [["gpu.example.com gpu-0"], ["gpu.example.com gpu-1"], None]


def test_a_pod_group_has_one_claim_for_all_its_pods(tmp_path: Path) -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": 3}},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        },
    }
    pod_spec = {**POD_SPEC, "schedulingGroup": {"podGroupName": "train"}}
    pods = {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "template": {"spec": pod_spec}}}  # type: ignore[dict-item]  # a literal
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all([TEMPLATE, group, pods]))
    files = ["-f", str(tmp_path / "pods.yaml"), "--from", str(tmp_path / "cluster.yaml")]
    listed = json.loads(CliRunner().invoke(main, ["simulate", *files, "-o", "json"]).output)
    # The first pod allocates the device, the others use it, too.
    assert [item["node"] for item in listed["items"]] == ["n1", "n1", "n1"]
    assert [item.get("devices") for item in listed["items"]] == [["gpu.example.com gpu-0"], [], []]


def test_pods_share_a_claim(tmp_path: Path) -> None:
    claim = {**TEMPLATE, "kind": "ResourceClaim", "spec": TEMPLATE["spec"]["spec"]}  # type: ignore[index]  # a literal
    pod_spec = {**POD_SPEC, "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{n}"}, "spec": pod_spec} for n in range(3)]
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all([claim, *pods]))
    files = ["-f", str(tmp_path / "pods.yaml"), "--from", str(tmp_path / "cluster.yaml")]
    answer = CliRunner().invoke(main, ["simulate", *files]).output
    assert answer.count("gpu.example.com gpu-0") == 1
    assert "3 of 3 pods would be placed." in answer
