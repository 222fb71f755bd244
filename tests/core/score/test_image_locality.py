"""Points for images that a node has already: the table is worked out by kube-scheduler's formula."""

import pytest

from koord_numa.core.objects.node import Image, PodImages
from koord_numa.core.score.node_scores import MIB, score_images
from tests.engine.world import make_node
from tests.tables import each_row

NGINX = Image(("nginx:1", "nginx@sha256:0"), 250 * MIB)
CUDA = Image(("cuda:12",), 4000 * MIB)
SMALL = Image(("pause:3",), MIB)


@each_row(
    ("here", "names", "nodes", "expected"),
    [
        pytest.param([NGINX], ["nginx:1"], {"nginx:1": 4}, 100 * (250 - 23) // (1000 - 23), id="everywhere"),
        pytest.param([NGINX], ["nginx:1"], {"nginx:1": 2}, 100 * (125 - 23) // (1000 - 23), id="on half of the nodes"),
        pytest.param([NGINX], ["nginx@sha256:0"], {"nginx@sha256:0": 4}, 23, id="by digest"),
        pytest.param([CUDA], ["cuda:12"], {"cuda:12": 4}, 100, id="no more than 100"),
        pytest.param([CUDA], ["cuda:12", "other:1"], {"cuda:12": 4}, 100, id="the bound grows with the containers"),
        pytest.param(
            [NGINX], ["nginx:1", "nginx:1"], {"nginx:1": 4}, 100 * (500 - 23) // (2000 - 23), id="a container each"
        ),
        pytest.param([SMALL], ["pause:3"], {"pause:3": 4}, 0, id="small ones count for nothing"),
        pytest.param([], ["nginx:1"], {"nginx:1": 3}, 0, id="not here"),
        pytest.param([NGINX], [], {}, 0, id="no containers"),
        pytest.param([NGINX], [""], {}, 0, id="no name"),
    ],
)
def test_points(here: list[Image], names: list[str], nodes: dict[str, int], expected: int) -> None:
    node = make_node("n", images=frozenset(here))
    assert score_images(node, PodImages(tuple(names), 4, nodes)) == expected
