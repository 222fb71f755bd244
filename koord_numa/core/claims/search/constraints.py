"""Constraints between the devices of a claim: equal, or pairwise distinct, values of an attribute."""

from dataclasses import dataclass, field

from koord_numa.core.claims.objects.claim import DeviceConstraint
from koord_numa.core.claims.search.inventory import Attribute, Device


@dataclass(slots=True)
class ConstraintState:
    """A constraint and the values of the devices picked so far. A device without the attribute satisfies neither kind."""

    constraint: DeviceConstraint
    values: list[Attribute] = field(default_factory=list)

    def add(self, device: Device) -> bool:
        """Take the device's value if the constraint allows it."""
        value = device.attribute(self.constraint.attribute)
        if value is None or value.kind not in _COMPARABLE:
            # A device without the attribute can be neither equal nor distinct: upstream refuses it under both.
            return False
        if self.constraint.distinct:
            # Upstream compares with the value picked last only; all of them must differ.
            if value in self.values:
                return False
        elif self.values and value != self.values[0]:
            return False
        self.values.append(value)
        return True

    def remove(self) -> None:
        """Give back the value taken last."""
        self.values.pop()


_COMPARABLE = frozenset({"int", "bool", "string", "version"})
"""Lists never match: kube-scheduler 1.36 runs without DRAListTypeAttributes."""
