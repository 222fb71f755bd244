"""The node agent's DaemonSet: off unless asked for, as little access as it needs, and rights for exactly what it does."""

from pathlib import Path
from typing import Any

import click
import pytest

from koord_numa.cli.commands.node_agent import command
from koord_numa.node.observer import GRACE
from koord_numa.sandbox.machines.description import NodeDescription, Shape
from tests.deploy.test_installation import overlay
from tests.deploy.test_manifests import DEPLOY, Manifest, documents, of_kind, pod_spec, rendered
from tests.node.nodes import NODE, world
from tests.sandbox.machines.pods import place

COMPONENT = DEPLOY / "kustomize" / "components" / "node-agent"
AGENT = {"nodeAgent": {"enabled": True}}
APPLYING = {"nodeAgent": {"enabled": True, "apply": {"enabled": True, "memory": True}}}


def ours(manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["metadata"]["name"].endswith("-node-agent")]


def component() -> list[Manifest]:
    return [
        manifest for name in ("rbac.yaml", "daemonset.yaml") for manifest in documents((COMPONENT / name).read_text())
    ]


def rules(manifests: list[Manifest]) -> set[tuple[str, str]]:
    """Verb and resource of everything that the cluster role allows."""
    role = of_kind(manifests, "ClusterRole")
    return {(verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def test_it_is_off_by_default() -> None:
    assert not ours(rendered())


def test_chart_and_component_are_the_same() -> None:
    chart = ours(rendered(AGENT))
    assert of_kind(chart, "ClusterRole")["rules"] == of_kind(component(), "ClusterRole")["rules"]
    ours_, theirs = (pod_spec(of_kind(manifests, "DaemonSet")) for manifests in (chart, component()))
    for key in ("volumes", "priorityClassName", "tolerations"):
        assert ours_[key] == theirs[key]
    for key in (
        "args",
        "env",
        "resources",
        "securityContext",
        "volumeMounts",
        "livenessProbe",
        "readinessProbe",
        "ports",
    ):
        assert ours_["containers"][0][key] == theirs["containers"][0][key]


def test_device_objects_are_written_on_request_only() -> None:
    """The right to Device objects and the option, in the chart and in the component."""
    written = ("scheduling.koordinator.sh", ["devices"], ["get", "create", "patch"])
    charts = (rendered(AGENT), rendered({"nodeAgent": {"enabled": True, "devices": True}}))
    bases = (overlay("node-agent"), overlay("node-agent", "node-agent-devices"))
    for manifests in (charts, bases):
        found = []
        for agent in map(ours, manifests):
            rules_ = of_kind(agent, "ClusterRole")["rules"]
            (container,) = pod_spec(of_kind(agent, "DaemonSet"))["containers"]
            right = written in [(*rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules_]
            found.append((right, "--devices" in container["args"]))
        assert found == [(False, False), (True, True)]


def test_metrics_over_tls_on_request() -> None:
    """Option, rights and probes, in the chart and in the component; the chart's PodMonitor uses HTTPS with a token."""
    secure = {"enabled": True, "metricsTLS": True, "podMonitor": {"enabled": True, "tokenSecret": "prometheus-token"}}
    for manifests in (rendered({"nodeAgent": secure}), overlay("node-agent", "node-agent-metrics-tls")):
        agent = ours(manifests)
        reviews = [rule["resources"] for rule in of_kind(agent, "ClusterRole")["rules"] if rule["verbs"] == ["create"]]
        assert reviews[-2:] == [["tokenreviews"], ["subjectaccessreviews"]]
        (container,) = pod_spec(of_kind(agent, "DaemonSet"))["containers"]
        assert "--metrics-tls" in container["args"]
        probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
        assert [(probe["path"], probe["scheme"]) for probe in probes] == [("/healthz", "HTTPS"), ("/readyz", "HTTPS")]
    (monitor,) = [it for it in rendered({"nodeAgent": secure}) if it["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    assert endpoint["authorization"]["credentials"] == {"name": "prometheus-token", "key": "token"}


@pytest.mark.parametrize("values", [AGENT, APPLYING], ids=["observing", "applying"])
def test_it_has_no_more_access_than_it_needs(values: dict[str, Any]) -> None:
    spec = pod_spec(of_kind(ours(rendered(values)), "DaemonSet"))
    assert not any(spec.get(word) for word in ("hostNetwork", "hostPID", "hostIPC"))
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert len(spec["volumes"]) == len(container["volumeMounts"])


def test_only_interrupts_need_write_access() -> None:
    values = {"nodeAgent": {"enabled": True, "apply": {"enabled": True, "interrupts": True}}}
    spec = pod_spec(of_kind(ours(rendered(values)), "DaemonSet"))
    (container,) = spec["containers"]
    writable = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"irq": "/host/proc/irq", "state": "/host/state"}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert (paths["irq"], paths["state"], paths["run"]) == ("/proc/irq", "/run/koord-numa", "/run")
    with command.make_context("node-agent", container["args"][1:]) as context:
        asked = [str(context.params[name]) for name in ("proc", "run_dir", "state_dir")]
    assert asked == ["/host/proc", "/host/run", "/host/state"]


def test_the_kubelets_directory_need_not_be_mounted() -> None:
    spec = pod_spec(of_kind(ours(rendered({"nodeAgent": {"enabled": True, "kubeletRoot": ""}})), "DaemonSet"))
    assert "kubelet" not in [volume["name"] for volume in spec["volumes"]]
    assert "--root-dir=" in spec["containers"][0]["args"]
    mounted = pod_spec(of_kind(ours(rendered(AGENT)), "DaemonSet"))
    assert {"name": "kubelet", "mountPath": "/host/kubelet", "readOnly": True} in mounted["containers"][0][
        "volumeMounts"
    ]


@pytest.mark.parametrize("values", [AGENT, APPLYING], ids=["observing", "applying"])
def test_the_command_line_is_understood(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pod_spec(of_kind(ours(rendered(values)), "DaemonSet"))
    name, *arguments = spec["containers"][0]["args"]
    assert name == "node-agent"
    monkeypatch.setenv("NODE_NAME", "n0")
    with command.make_context(name, list(arguments)) as context:
        assert isinstance(context, click.Context)
        assert context.params["node_name"] == "n0"
        assert context.params["apply_"] is (values is APPLYING)


async def test_its_rights_are_those_that_it_uses(tmp_path: Path) -> None:
    description = NodeDescription(name=NODE, hardware=Shape(cores=2).build())
    async with world(tmp_path, description) as around, around.agent() as agent:
        place(around.server.store, NODE, "a", "1")
        await agent.round()
        around.clock.now += GRACE
        await agent.round()
        used = {
            (asked.verb, asked.resource.partition(".")[0])
            for asked in around.server.requests
            if "node-agent" in asked.user_agent
        }
        allowed = rules(component())
        assert {("patch" if verb == "apply" else verb, resource) for verb, resource in used} <= allowed
        # An apply that makes the object needs the right to create it too; a list is followed by a watch.
        assert allowed - used <= {
            ("create", "noderesourcetopologies"),
            ("patch", "noderesourcetopologies"),
            ("watch", "pods"),
        }
