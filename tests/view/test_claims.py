"""Claims on the page and in the terminal: devices and CPUs of each on its NUMA nodes, and what a claim of a waiting pod asks for."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from playwright.async_api import expect

from koord_numa.cli import main
from koord_numa.sandbox.devices import device_classes, slices_of
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.sandbox.machines.topologies import Usage, koordinator_topology, node_object, node_status
from koord_numa.wire import names
from tests.view.browser import browser_page, chromium, needs_chromium, violations

__all__ = ["chromium"]  # a fixture

Json = dict[str, Any]
MACHINE = {
    "name": "own",
    "sockets": 2,
    "numa": 1,
    "cores": 4,
    "threads": 2,
    "memory": "16Gi",
    "claimedDevices": {"example.com/gpu": [0, 1]},
    "cpuDriver": "layout",
}
NOW = "2026-01-01T00:00:00Z"


def claim(name: str, allocation: Json | None = None) -> Json:
    """A claim for a GPU and four CPUs, perhaps with devices."""
    asks: list[Json] = [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}},
        {"name": "cpus", "exactly": {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": "4"}}}},
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"devices": {"requests": asks}},
        "status": {} if allocation is None else {"allocation": allocation},
    }


def allocation(gpu: str, cpuset: str) -> Json:
    """Return the allocation of such a claim."""
    parameters = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": cpuset}}
    pool = {"pool": "own"}
    return {
        "devices": {
            "results": [
                {"request": "gpu", "driver": "gpu.example.com", "device": gpu, **pool},
                {"request": "cpus", "driver": "dra.cpu", "device": "cpudevmachine", "consumedCapacity": {"dra.cpu/cpu": "4"}, **pool},
            ],
            "config": [{"source": "FromClaim", "requests": ["cpus"], "opaque": {"driver": "dra.cpu", "parameters": parameters}}],
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["own"]}]}]},
    }  # fmt: skip


def pod(name: str, node: str = "") -> Json:
    """A pod with the claim of its name."""
    amounts = {"cpu": "4", "memory": "1Gi"}
    resources = {"requests": amounts, "claims": [{"name": "devices"}]}
    status = json.dumps({"numaNodeResources": [{"node": 0, "resources": amounts}]})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-pod-{name}",
            **({"annotations": {names.RESOURCE_STATUS: status}} if node else {}),
        },
        "spec": {
            "schedulerName": "koord-numa",
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """A node with two claims, one of them without a pod, and a pod that waits for a third GPU."""
    (node,) = read_descriptions({"machines": [MACHINE]}, tmp_path)
    documents = [
        {**node_object(node, NOW), "status": node_status(node, NOW)},
        koordinator_topology(node, Usage()),
        *device_classes(),
        *slices_of(node),
        claim("train", allocation("gpu-0", "0-1,8-9")),
        claim("kept", allocation("gpu-1", "4-5,12-13")),
        claim("more"),
        pod("train", "own"),
        pod("more"),
    ]
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def run(*arguments: str) -> str:
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_the_document_of_a_node_has_claims_and_devices(objects: Path) -> None:
    found = json.loads(run("node", "own", "--from", str(objects), "-o", "json"))
    gpu = {"request": "gpu", "driver": "gpu.example.com", "pool": "own", "adminAccess": False}
    assert found["claims"] == [
        {"claim": "default/kept", "state": "allocated", "pods": [], "devices": [{**gpu, "device": "gpu-1", "numa": 1}],
         "cpus": "4-5,12-13", "numa": [1]},
        {"claim": "default/train", "state": "allocated", "pods": ["default/train"], "devices": [{**gpu, "device": "gpu-0", "numa": 0}],
         "cpus": "0-1,8-9", "numa": [0]},
    ]  # fmt: skip
    assert [(one["device"], one["numa"], one["claims"]) for one in found["devices"]] == [
        ("gpu-0", 0, ["default/train"]),
        ("gpu-1", 1, ["default/kept"]),
    ]
    assert found["unusedClaims"] == [{"claim": "default/kept", "cpuIds": [4, 5, 12, 13]}]
    drawn = {cpu["id"]: cpu["pods"] for cpu in _cpus(found["machine"])}
    assert [drawn[cpu] for cpu in (0, 1, 8, 9, 4, 5, 12, 13, 2)] == [[0]] * 4 + [[1]] * 4 + [[]]
    [train] = found["pods"]
    assert (train["cpus"], train["numa"], train["cpuIds"]) == ("0-1,8-9", [0], [0, 1, 8, 9])


def _cpus(machine: Json) -> list[Json]:
    return [
        cpu
        for socket in machine["sockets"]
        for numa in socket["numa"]
        for cache in numa["caches"]
        for core in cache["cores"]
        for cpu in core["cpus"]
    ]


def test_cpus_whose_driver_chooses_are_counted_by_group(objects: Path) -> None:
    """Groups of CPUs by NUMA node, and individual CPUs, of which the ids are known."""
    group = {"name": "cpudevnuma000", "attributes": {"resource.kubernetes.io/numaNode": {"int": 0}}}
    single = {"name": "cpudev005", "attributes": {"dra.cpu/cpuID": {"int": 5}, "dra.cpu/numaNodeID": {"int": 1}}}
    published = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "own-groups"},
        "spec": {
            "driver": "dra.cpu",
            "nodeName": "own",
            "pool": {"name": "groups", "generation": 1, "resourceSliceCount": 1},
            "devices": [group, single],
        },
    }
    held = claim("train", allocation("gpu-0", ""))
    results = held["status"]["allocation"]["devices"]["results"]
    del held["status"]["allocation"]["devices"]["config"]
    results[1] |= {"pool": "groups", "device": "cpudevnuma000"}
    alone = claim("alone", allocation("gpu-1", ""))
    del alone["status"]["allocation"]["devices"]["config"]
    alone["status"]["allocation"]["devices"]["results"] = [
        {"request": "cpus", "driver": "dra.cpu", "pool": "groups", "device": "cpudev005"}
    ]
    kept = [it for it in yaml.safe_load_all(objects.read_text()) if it["kind"] != "ResourceClaim"]
    objects.write_text(yaml.safe_dump_all([*kept, published, held, alone]))
    shown = run("node", "own", "--from", str(objects)).splitlines()
    assert "default/train  default/train  0     gpu.example.com gpu-0, dra.cpu cpudevnuma000 (4 CPUs)" in shown
    assert "default/alone  -              1     CPUs 5" in shown


def test_the_terminal_draws_claimed_cpus(objects: Path) -> None:
    shown = run("node", "own", "--from", str(objects)).splitlines()
    assert "NUMA 0  socket 0  4 of 8 CPUs free" in shown  # and no pod on shared CPUs
    assert "  t0    A A · ·" in shown
    assert "  A train  0-1,8-9" in shown
    assert "  B claim default/kept  4-5,12-13" in shown  # no pod uses it, and its CPUs are not free
    assert shown[-3:] == [
        "CLAIM          POD            NUMA  DEVICES",
        "default/kept   -              1     gpu.example.com gpu-1, CPUs 4-5,12-13",
        "default/train  default/train  0     gpu.example.com gpu-0, CPUs 0-1,8-9",
    ]


def test_claims_of_waiting_pods_say_what_they_ask_for(objects: Path) -> None:
    found = json.loads(run("explain", "more", "--from", str(objects), "-o", "json"))
    asks = ["gpu: 1 of gpu.example.com", "cpus: 4 CPU of dra.cpu"]
    assert found["shape"]["wouldFit"] == []  # the GPU is the claim's, which stays when the pod leaves
    assert found["shape"]["claims"] == [
        {"entry": "devices", "claim": "default/more", "state": "not allocated", "asks": asks}
    ]


def test_extended_resources_by_claim_are_shown_like_claims(objects: Path) -> None:
    """One pod on the node whose claim its status names, and one that waits for a third GPU."""
    held = claim("made", allocation("gpu-0", "0-1,8-9"))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "asks", "uid": "uid-pod-asks", "controller": True}
    held["metadata"] |= {
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [owner],
    }
    resource = "deviceclass.resource.kubernetes.io/gpu.example.com"
    more = []
    for name, node in (("asks", "own"), ("waits", "")):
        made = pod(name, node)
        del made["spec"]["resourceClaims"]
        made["spec"]["containers"][0]["resources"] = {
            "requests": {"cpu": "1", resource: "1"},
            "limits": {resource: "1"},
        }
        more.append(made)
    more[0]["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made", "requestMappings": []}
    kept = [each for each in yaml.safe_load_all(objects.read_text()) if each["metadata"]["name"] != "train"]
    objects.write_text(yaml.safe_dump_all([*kept, held, *more]))
    shown = json.loads(run("node", "own", "--from", str(objects), "-o", "json"))
    assert [(it["claim"], it["pods"]) for it in shown["claims"]] == [
        ("default/kept", []),
        ("default/made", ["default/asks"]),
    ]
    found = json.loads(run("explain", "waits", "--from", str(objects), "-o", "json"))
    assert found["shape"]["claims"] == [
        {
            "entry": "<extended-resources>",
            "claim": "",
            "state": "made for nodes that do not advertise it",
            "asks": [f"{resource}: 1 of gpu.example.com"],
        }
    ]
    told = " ".join(run("explain", "waits", "--from", str(objects)).split())
    told = " ".join(run("explain", "waits", "--from", str(objects)).split())
    assert f"{resource} of container main: 1 wanted, 2 of 2 devices match, 0 free" in told


@pytest.mark.e2e
@needs_chromium
@pytest.mark.usefixtures("chromium")
@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_shows_them(objects: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run("page", "--from", str(objects), "-o", str(path))
    async with browser_page(offline=True) as page:
        await page.goto(f"{path.as_uri()}#/nodes/own")
        numa = page.locator(".numa[data-numa='0']")
        await expect(numa.locator(".claimable .device")).to_have_text(["gpu-0: default/train"])
        assert await numa.locator(".cpu.held").all_inner_texts() == ["0", "8", "1", "9"]
        rows = page.get_by_role("region", name="Resource claims").get_by_role("row")
        await expect(rows.nth(2)).to_contain_text("default/train")
        await expect(rows.nth(2)).to_contain_text("gpu.example.com gpu-0, NUMA 0")
        await expect(rows.nth(2)).to_contain_text("0-1,8-9")
        assert await violations(page) == []
        await page.goto(f"{path.as_uri()}#/waiting")
        await expect(page.get_by_label("Resource claims")).to_have_text(
            "claim devices (default/more), not allocated: gpu: 1 of gpu.example.com; cpus: 4 CPU of dra.cpu"
        )
        await expect(page.get_by_text("1 wanted, 2 of 2 devices match, 0 free")).to_be_visible()
        assert await violations(page) == []


def test_placed_pods_show_devices_and_nodes_tainted_devices(objects: Path) -> None:
    spec = {"deviceSelector": {"device": "gpu-1"}, "taint": {"key": "broken", "value": "ecc", "effect": "NoExecute"}}
    rule = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "ecc"}, "spec": spec}
    objects.write_text(yaml.safe_dump_all([*yaml.safe_load_all(objects.read_text()), rule]))
    shown = run("explain", "train", "--from", str(objects)).splitlines()
    assert "  claim default/train holds gpu.example.com gpu-0, CPUs 0-1,8-9 on NUMA 0" in shown
    assert run("node", "own", "--from", str(objects)).splitlines()[-2:] == [
        "DEVICE                 TAINTS",
        "gpu.example.com gpu-1  broken=ecc:NoExecute by DeviceTaintRule ecc",
    ]
