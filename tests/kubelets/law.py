"""Law for every kubelet, churn and lag: the kubelet admits every placed pod, apart from first explorations."""

from collections import Counter
from typing import Any

from koord_numa.sandbox.machines import NodeDescription
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import Action


def live(node: NodeDescription, specs: list[dict[str, Any]], actions: list[Action]) -> NodeLife:
    """Let these things happen on the node, one after the other, and then everything that is still under way."""
    return live_on(NodeLife(node), specs, actions)


def live_on(life: NodeLife, specs: list[dict[str, Any]], actions: list[Action]) -> NodeLife:
    """As ``live``, on a node that is there already."""
    for what, which in actions:
        if what == "place":
            life.place(specs[which % len(specs)])
        elif what == "end":
            life.end(which)
        elif what == "restart":
            life.restart(which % 3)
        elif what == "wait":
            life.wait(5.0 * which)
        else:
            getattr(life, what)()
    life.settle()
    return life


def broken(life: NodeLife) -> list[str]:
    """Refusals that the law does not allow; an option may be explored at the price of one refusal."""
    explored = Counter(option for refusal in life.refusals for option in refusal.explored)
    found = [str(refusal) for refusal in life.refusals if not refusal.explored]
    found += [f"{option} cost {count} refusals" for option, count in explored.items() if count > 1]
    return found and [str(life.description.kubelet), *life.log, *found]
