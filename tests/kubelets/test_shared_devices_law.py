"""The law of kubelet-owned nodes where devices are near several NUMA nodes and nothing tells which: what the engine places is admitted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kubelets.law import broken, live_on
from tests.kubelets.shared_devices import SharedLife, gpu_pods, lives
from tests.kubelets.strategies import Action, actions
from tests.kubelets.test_admission_law import FIXED


@given(lives(), st.lists(gpu_pods(), min_size=1, max_size=6), actions())
def what_is_placed_is_admitted(life: SharedLife, pods: list[dict[str, Any]], what: list[Action]) -> None:
    """One example of the law."""
    found = broken(live_on(life, pods, what))
    assert not found, "\n".join([f"{[bin(mask) for mask in life.wiring]} in full {life.in_full}", *found])


def test_what_is_placed_is_admitted_however_devices_are_shared(pytestconfig: pytest.Config) -> None:
    count = int(pytestconfig.getoption("--law-examples"))
    profile = settings(max_examples=count, derandomize=count <= FIXED, database=None, deadline=None)
    profile(what_is_placed_is_admitted)()
