"""The picture of a machine, as plain text."""

from koord_numa.cli.render.cpu_map import lines
from koord_numa.core.cpu_topology import cpu_topology_of, regular_topology
from koord_numa.core.cpuset import CpuSet
from koord_numa.view.drawing import CpuHolder, Drawing


def drawn(picture: Drawing, width: int = 100) -> list[str]:
    return [line.plain for line in lines(picture, width)]


def test_two_numa_nodes_with_pods_and_reserved_cpus() -> None:
    owners = [CpuHolder("default/web", CpuSet.parse("2-3"), "FullPCPUs"), CpuHolder("default/db", CpuSet.parse("8,10"))]
    picture = Drawing(regular_topology(1, 2, 4, 2), owners, reserved=CpuSet.parse("0-1"))
    assert drawn(picture) == [
        "NUMA 0  socket 0  4 of 8 CPUs free",
        "  cpu   0",
        "  t0    # A · ·",
        "  t1    # A · ·",
        "NUMA 1  socket 0  6 of 8 CPUs free",
        "  cpu   8",
        "  t0    B B · ·",
        "  t1    · · · ·",
        "  A default/web  2-3  FullPCPUs",
        "  B default/db  8,10",
        "  · free   # reserved   t0, t1: threads of a core",
    ]


def test_a_cpu_with_two_owners_cannot_be_overlooked() -> None:
    owners = [CpuHolder("a", CpuSet.parse("0")), CpuHolder("b", CpuSet.parse("0-1"))]
    assert "  t0    * B" in drawn(Drawing(regular_topology(1, 1, 2, 1), owners))


def test_wide_machines_wrap_and_odd_cores_keep_their_columns() -> None:
    hybrid = cpu_topology_of([(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0), (3, 2, 0, 0), (4, 3, 0, 0), (5, 4, 0, 0)])
    found = drawn(Drawing(hybrid), width=20)
    assert found[1:6] == ["  cpu   0", "  t0    · · · ·", "  t1    ·", "  cpu   5", "  t0    ·"]


def test_a_numa_node_without_cpus_is_shown_with_its_holdings() -> None:
    picture = Drawing(cpu_topology_of([(0, 0, 0, 0)], numa_ids=(0, 1)), notes={1: "2 of 8 GPUs held"})
    assert "NUMA 1  0 of 0 CPUs free; 2 of 8 GPUs held" in drawn(picture)
