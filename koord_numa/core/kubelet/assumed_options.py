"""
Kubelet options that an operator states for the nodes of a selector, where exporters publish none.

A statement stands in for what is not published and never for what is. A kubelet's answer that contradicts it counts for more: the node
is then treated by what its kubelet has shown (``exploration.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koord_numa.core.kubelet.inference.node_config import likely_config
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.value_objects import replace


@dataclass(frozen=True, slots=True)
class StatedOptions:
    """
    One statement. ``labels`` are those that a node must have, all of them; none at all select every node.

    ``cpu_options`` and ``topology_options`` are the kubelet's ``cpuManagerPolicyOptions`` and ``topologyManagerPolicyOptions``; options
    that are not named are off.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_options: Mapping[str, bool] = field(default_factory=dict)
    topology_options: Mapping[str, bool] = field(default_factory=dict)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Is the statement about a node with these labels?"""
        return all(labels.get(key) == value for key, value in self.labels.items())


def with_stated_options(
    topology: NodeResourceTopology, labels: Mapping[str, str], statements: Sequence[StatedOptions]
) -> NodeResourceTopology:
    """The topology of a kubelet-owned node with the options of the first statement about it filled in where none are published."""
    config = topology.kubelet
    # A published CPU manager policy comes with its options: there is nothing left to state.
    if topology.owner is not CpuOwner.KUBELET or topology.problem or config.cpu_policy is not None:
        return topology
    # The first match wins, as rules of a list are read; later ones are not merged in.
    for one in statements:
        if one.selects(labels):
            known = replace(
                likely_config(topology),
                cpu_options=dict(one.cpu_options),
                # What is published replaces what is stated, option by option.
                topology_options={**one.topology_options, **config.topology_options},
            )
            return replace(topology, kubelet=known)
    return topology
