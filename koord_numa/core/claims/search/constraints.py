"""Constraints between the devices of a claim: a common value, or pairwise disjoint values, of an attribute."""

from dataclasses import dataclass, field

from koord_numa.core.claims.objects.claim import DeviceConstraint
from koord_numa.core.claims.search.inventory import Device

Values = frozenset[tuple[str, int | bool | str]]


@dataclass(slots=True)
class ConstraintState:
    """
    A constraint and the values of the devices picked so far (KEP-5491; structured/internal/experimental/constraint.go).

    A scalar is a set of one value. ``matchAttribute``: the intersection of all sets is not empty. ``distinctAttribute``: the sets
    are pairwise disjoint. A device without the attribute, or with a value of an unknown type, satisfies neither.
    """

    constraint: DeviceConstraint
    values: list[Values] = field(default_factory=list)  # matchAttribute: the intersection after each pick

    def add(self, device: Device) -> bool:
        """Take the values of the device if the constraint allows it."""
        attribute = device.attribute(self.constraint.attribute or "")
        added = attribute.set if attribute is not None else frozenset()
        if self.constraint.distinct:
            if not added or any(added & earlier for earlier in self.values):
                return False
        elif self.values:
            added &= self.values[-1]
        if not added:
            return False
        self.values.append(added)
        return True

    def remove(self) -> None:
        """Give back the values taken last."""
        self.values.pop()
