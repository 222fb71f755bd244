"""A pod that was given a node is the same pod in every other respect."""

from dataclasses import fields, replace

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, Pod, PodKey, PodRequest


def test_only_the_node_and_the_assignment_change() -> None:
    plain = Pod(PodKey("default", "a", "u"), PodRequest())
    # Every field gets a value of its own, so that no two can be mixed up.
    values = {each.name: each.name for each in fields(Pod) if each.name not in ("key", "request")}
    odd = replace(plain, **values)  # type: ignore[arg-type]  # texts where other types belong: only their places matter
    given = Assignment(cpus=CpuSet.parse("0-3"))
    assert odd.placed("n", given) == replace(odd, node="n", assignment=given)
