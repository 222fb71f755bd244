"""Features that nodes declare."""

from koord_numa.core.fit.node_filters import fits_features
from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.node import Node
from tests.core.fit.builders import asks


def test_every_needed_feature_must_be_declared() -> None:
    request = asks(Constraints(features=("A", "B")))
    assert fits_features(request, Node("w", features=frozenset("ABC"))) is None
    refused = fits_features(request, Node("w", features=frozenset("A")))
    assert refused is not None
    assert refused.detail == "unsatisfied requirements: B"
    assert fits_features(request, Node("w")) is not None
    assert fits_features(asks(Constraints()), Node("w")) is None
