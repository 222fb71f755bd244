"""``docs/pod-fields.md`` lists every field of the API, and marks the fields that the parsers read as honored."""

import re
from pathlib import Path

from msgspec import Struct

from koord_numa.sandbox.apiserver.kinds import schema
from koord_numa.wire.nodes import ContainerImage, NodeSpec
from koord_numa.wire.pod_requests import ConstraintsModel, ContainerModel, WorkloadModel
from koord_numa.wire.pods import SchedulingSpec, Status
from tests.tables import each_row

DOCUMENT = Path(__file__).parents[2] / "docs" / "pod-fields.md"
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (honored|irrelevant) \| \S.* \|$", re.MULTILINE)


def tables() -> list[dict[str, str]]:
    """Return the fields with their support, for every table of the document."""
    parts = DOCUMENT.read_text().split("| --- | --- | --- |\n")[1:]
    found = []
    for part in parts:
        fields = [(name.strip("`"), support) for names, support in ROW.findall(part) for name in names.split(", ")]
        assert len(fields) == len(dict(fields))
        found.append(dict(fields))
    return found


def known_to(kind: str) -> set[str]:
    """The fields of a type in Kubernetes 1.36."""
    return set(schema(f"io.k8s.api.v1.{kind}")["properties"])


def read_by(*models: type[Struct]) -> set[str]:
    """The fields that parsers read, as they are spelled in the API."""
    return {name for model in models for name in model.__struct_encode_fields__}


LATER_SPEC = {"evictionResponders"}
LATER_STATUS = {"nodeAllocatableResourceClaimStatuses"}
LATER_NODE = {"podPreemptionPolicy"}
"""Fields that Kubernetes 1.37 adds to the schemas, which are those of 1.36."""

OF_RESIZE = {"allocatedResources", "resources"}
"""Read from the raw status, for pods that are being resized."""

OF_SPEC = (tables()[0], known_to("PodSpec") | LATER_SPEC, read_by(WorkloadModel, ConstraintsModel, SchedulingSpec))
OF_CONTAINER = (tables()[1], known_to("Container"), read_by(ContainerModel, ContainerImage))
OF_STATUS = (tables()[2], known_to("PodStatus") | LATER_STATUS, read_by(Status) | OF_RESIZE)
OF_NODE = (tables()[3], known_to("NodeSpec") | LATER_NODE, read_by(NodeSpec))


@each_row(
    ("told", "known", "read"),
    [OF_SPEC, OF_CONTAINER, OF_STATUS, OF_NODE],
    ids=["spec", "container", "status", "node"],
)
def test_every_field_is_told_of(told: dict[str, str], known: set[str], read: set[str]) -> None:
    assert told.keys() == known
    assert {name for name, verdict in told.items() if verdict != "irrelevant"} == read
