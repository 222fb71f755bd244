"""Questions to all cores at once must be answered as if each core had been asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet, each, lowest
from koord_numa.core.rebind.layout import cores_of
from tests.machines import machine
from tests.strategies import cpusets_of, machines
from tests.tables import each_row


@given(st.data())
def test_as_core_by_core(data: st.DataObject) -> None:
    host = data.draw(machines())
    bits = data.draw(cpusets_of(host)).bits
    cores = cores_of(host)
    first = {core.bits: core.bits & -core.bits for core in host.cores}
    touched = [core.bits for core in host.cores if core.bits & bits]
    whole = [core for core in touched if core & bits == core]
    assert cores.touched(bits) == sum(first[core] for core in touched)
    assert cores.whole(bits) == sum(first[core] for core in whole)
    assert cores.cpus(cores.whole(bits)) == sum(whole)
    assert cores.one_each(cores.touched(bits), bits) == sum(core & bits & -(core & bits) for core in touched)


@given(st.data())
def test_filling_takes_whole_cores_and_no_more_than_fit(data: st.DataObject) -> None:
    host = data.draw(machines())
    cores = cores_of(host)
    offered = cores.whole(data.draw(cpusets_of(host)).bits)
    count = data.draw(st.integers(0, 12))
    taken = cores.fill(offered, count)
    assert taken.bit_count() <= count
    assert cores.cpus(cores.whole(taken)) == taken
    left = [core for core in each(offered & ~cores.whole(taken)) if cores.cpus(core).bit_count() <= count]
    smallest = min((cores.cpus(core).bit_count() for core in left), default=count + 1)
    assert taken.bit_count() + smallest > count, "another core would have fitted"


@each_row(
    ("cpus", "count", "found"),
    [
        pytest.param("", 2, "", id="none"),
        pytest.param("3-5", 2, "3-4", id="some"),
        pytest.param("3-5", 3, "3-5", id="all"),
        pytest.param("3-5", 9, "3-5", id="fewer-than-asked-for"),
        pytest.param("3-5", 0, "", id="nothing-asked-for"),
    ],
)
def test_lowest(cpus: str, count: int, found: str) -> None:
    assert str(CpuSet(lowest(CpuSet.parse(cpus).bits, count))) == found


def test_a_machine_is_looked_at_once() -> None:
    host = machine("2x1x4x2", "split")
    assert cores_of(host) is cores_of(host)
    assert cores_of(host).most == len(("0", "8"))
