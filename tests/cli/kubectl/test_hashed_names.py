"""A snapshot with hashed names decides as the cluster does, and tells no name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.cli import main
from koord_numa.cli.commands.snapshot import hash_names, hashed, short_hash
from tests.cli.kinds import claim, storage_class, using, volume
from tests.cli.small import ask, pod, small_cluster

ON_A_DISK = using(pod("secret-db", 4, numa="SingleNUMANode"), "secret-data")
BY_HOST = pod("secret-host", 2)
BY_HOST["spec"]["affinity"] = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["theirs"]}]}
            ]
        }
    }
}
THERE = pod("secret-guest", 4, node="theirs")


def test_references_lead_somewhere() -> None:
    obj: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "n", "labels": {"kubernetes.io/hostname": "host", "app": "kept"}},
        "spec": {
            "nodeName": "host",
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}],
            "terms": [
                {"key": "metadata.name", "operator": "In", "values": ["host"]},
                {"key": "app", "values": ["kept"]},
            ],
        },
    }
    found = hashed(obj)
    assert found["metadata"]["labels"] == {"kubernetes.io/hostname": short_hash("host"), "app": "kept"}
    assert found["spec"] == {
        "nodeName": short_hash("host"),
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": short_hash("claim")}],
        "terms": [
            {"key": "metadata.name", "operator": "In", "values": [short_hash("host")]},
            {"key": "app", "values": ["kept"]},
        ],
    }


def test_classes_keep_their_names() -> None:
    assert hashed(storage_class("fast", "Immediate"))["metadata"]["name"] == "fast"
    assert hashed(claim("data", "disk", "fast"))["spec"]["storageClassName"] == "fast"


def test_names_in_annotations() -> None:
    allocations = [{"namespace": "n", "name": "a", "uid": "u", "cpuset": "0-1"}]
    annotations = {
        "node.koordinator.sh/pod-cpu-allocs": json.dumps(allocations),
        "koord-numa/cpuset-differences": json.dumps({"n/a": {"decided": "0"}}),
    }
    found = hashed({"kind": "NodeResourceTopology", "metadata": {"name": "host", "annotations": annotations}})[
        "metadata"
    ]["annotations"]
    [entry] = json.loads(found["node.koordinator.sh/pod-cpu-allocs"])
    assert entry == {"namespace": short_hash("n"), "name": short_hash("a"), "uid": "u", "cpuset": "0-1"}
    assert json.loads(found["koord-numa/cpuset-differences"]) == {
        f"{short_hash('n')}/{short_hash('a')}": {"decided": "0"}
    }


async def test_a_snapshot_decides_as_the_cluster_without_names(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.yaml"
    objects = (
        storage_class("local", "WaitForFirstConsumer"),
        volume("secret-disk", "secret-data", "own"),
        claim("secret-data", "secret-disk", "local"),
    )
    async with small_cluster(tmp_path, THERE, *objects, ON_A_DISK, BY_HOST) as cluster:
        cluster.fleet.publish()
        live = {
            name: json.loads((await ask(cluster, "explain", name, "-o", "json")).output)
            for name in ("secret-db", "secret-host")
        }
        nodes = json.loads((await ask(cluster, "nodes", "-o", "json")).output)
        assert (await ask(cluster, "snapshot", "--hash-names", "-o", str(path))).exit_code == 0
    text = path.read_text()
    assert "secret" not in text
    assert "theirs" not in text
    for name, expected in live.items():
        command = ["explain", f"{short_hash('default')}/{short_hash(name)}", "-o", "json", "--from", str(path)]
        found = json.loads(CliRunner().invoke(main, command).output)
        assert found["state"] == expected["state"] == "fits"
        assert found["wouldGoTo"] == {**expected["wouldGoTo"], "node": short_hash(expected["wouldGoTo"]["node"])}
    read = json.loads(CliRunner().invoke(main, ["nodes", "-o", "json", "--from", str(path)]).output)
    facts = [{key: one[key] for key in ("state", "largest", "numa", "pods")} for one in nodes["items"]]
    assert sorted(
        map(str, ({key: one[key] for key in ("state", "largest", "numa", "pods")} for one in read["items"]))
    ) == sorted(map(str, facts))
    documents = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}
    assert ("StorageClass", "local") in documents


NAMES = st.from_regex(r"q[a-z0-9]{2,5}(-[a-z0-9]{1,3}){0,2}", fullmatch=True)
"""Names that are no words of the API."""


@st.composite
def clusters(draw: st.DrawFn) -> tuple[set[str], list[dict[str, Any]]]:
    """Names, and objects that use them in fields for names, and within other texts."""
    names = draw(st.lists(NAMES, min_size=4, max_size=8, unique=True))
    some = st.sampled_from(names)
    text = st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", "on ", "x-"]),
        some,
        st.sampled_from(["/", "-", ".", "_"]),
        some,
        st.sampled_from(["", ": full", "-x"]),
    )
    objects: list[dict[str, Any]] = [{"kind": "Node", "metadata": {"name": name}} for name in names]
    for name in names:
        key = draw(text).replace("/", "").replace(" ", "").replace(":", "")
        objects.append(
            {
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": draw(some),
                    "labels": {"app": draw(text), f"{key}.example.com/x": "y"},
                    "annotations": {
                        "note": draw(text),
                        "koord-numa/cpuset-differences": f'{{"{draw(some)}/{draw(some)}": {{}}}}',
                    },
                    "ownerReferences": [{"kind": "ReplicaSet", "name": draw(text), "uid": "u"}],
                },
                "spec": {
                    "nodeName": draw(some),
                    "nodeSelector": {"pool": draw(text), "kubernetes.io/hostname": draw(some)},
                    "containers": [{"name": draw(text), "resources": {"requests": {"cpu": "2"}}}],
                    "volumes": [{"name": draw(text), "persistentVolumeClaim": {"claimName": draw(some)}}],
                    "terms": [{"key": "app", "operator": "In", "values": [draw(text)]}],
                },
                "status": {"message": draw(text), "phase": "Pending"},
            }
        )
    return set(names), objects


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, str):
        yield value


@given(clusters())
@settings(max_examples=60)
def test_no_string_contains_a_name(cluster: tuple[set[str], list[dict[str, Any]]]) -> None:
    names, objects = cluster
    hidden = hash_names(objects)
    word = re.compile(f"(?<![a-z0-9])(?:{'|'.join(map(re.escape, names))})(?![a-z0-9])")
    leaks = [text for text in strings_in(hidden) if word.search(text)]
    assert leaks == []
    # Equal texts stay equal, and different texts stay different, so that selectors select the same.
    for path in ("labels", "annotations"):
        pairs = [
            (a["metadata"][path], b["metadata"][path])
            for a, b in zip(objects, hidden, strict=True)
            if path in a["metadata"]
        ]
        for before, after in pairs:
            for other, other_after in pairs:
                assert (before.get("app") == other.get("app")) == (after.get("app") == other_after.get("app"))


def test_words_of_an_api_stay() -> None:
    topology = {
        "kind": "NodeResourceTopology",
        "metadata": {"name": "node-0"},
        "zones": [{"name": "node-0", "type": "Node"}],
        "attributes": [{"name": "topologyManagerPolicy", "value": "none"}],
    }
    pods = [{"kind": "Pod", "metadata": {"name": name, "namespace": "default"}} for name in ("none", "cpu")]
    pods.append(
        {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}}
    )
    hidden = hash_names([topology, *pods])
    assert {key: hidden[0][key] for key in ("zones", "attributes")} == {
        key: topology[key] for key in ("zones", "attributes")
    }
    assert hidden[3]["spec"] == pods[2]["spec"]
