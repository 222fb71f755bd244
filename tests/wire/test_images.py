"""Images on nodes and in pods, whatever the objects contain."""

from koord_numa.core.objects.node import Image
from koord_numa.wire.nodes import MOST_IMAGES, node_images, normalized, pod_images
from tests.tables import each_row


@each_row(
    ("name", "expected"),
    [
        ("nginx", "nginx:latest"),
        ("nginx:1.27", "nginx:1.27"),
        ("registry:5000/nginx", "registry:5000/nginx:latest"),
        ("registry:5000/nginx:1", "registry:5000/nginx:1"),
        ("nginx@sha256:abc", "nginx@sha256:abc"),
        ("", ""),
    ],
)
def test_names_are_normalised(name: str, expected: str) -> None:
    assert normalized(name) == expected


def test_every_container_and_image_volume_counts() -> None:
    spec = {
        "initContainers": [{"name": "i", "image": "init:1"}],
        "containers": [{"name": "a", "image": "app"}, {"name": "b"}, {"name": "c", "image": 7}],
        "volumes": [{"name": "model", "image": {"reference": "model:2"}}, {"name": "e", "emptyDir": {}}],
    }
    assert pod_images(spec) == ("init:1", "app:latest", "", "", "model:2")


def test_what_nodes_report() -> None:
    status = {"images": [{"names": ["a@sha256:0", "a:1"], "sizeBytes": 5}, {"names": ["b:1"], "sizeBytes": 7}]}
    assert node_images(status) == {Image(("a@sha256:0", "a:1"), 5), Image(("b:1",), 7)}


@each_row(
    "status",
    [
        None,
        {},
        {"images": None},
        {"images": "a"},
        {"images": [None, "a", {}, {"names": "a"}, {"names": [None], "sizeBytes": 5}]},
        {"images": [{"names": ["a"], "sizeBytes": "5"}, {"names": ["a"], "sizeBytes": -1}, {"names": ["a"]}]},
        {"images": [{"names": ["a"], "sizeBytes": 1 << 70}]},
    ],
)
def test_what_is_malformed_is_left_out(status: object) -> None:
    assert node_images(status) == frozenset()


def test_long_lists_are_cut() -> None:
    listed = [{"names": [f"image:{number}"], "sizeBytes": 5} for number in range(10 * MOST_IMAGES)]
    assert len(node_images({"images": listed})) == MOST_IMAGES
