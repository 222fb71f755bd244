"""What the claims at hand can tell devices apart by: two devices that look alike to them are interchangeable."""

from koord_numa.core.cel.values import CelError
from koord_numa.core.claims.objects.demands import Prepared
from koord_numa.core.claims.search.budget import Selectors
from koord_numa.core.claims.search.inventory import Device


class DeviceLooks:
    """
    Devices as the selectors and constraints of some claims see them.

    Attributes that no expression and no constraint reads, such as a serial number, make no difference; an expression that reads in
    ways its text does not tell makes all of them count.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._known: dict[int, object] = {}  # by identity: the node's pools keep the devices alive
        self._names: set[str] | None = set()
        for claim in prepared.claims:
            self._names.update(constraint.attribute or "" for constraint in claim.spec.constraints)
        for alternative in prepared.every_alternative():
            for expression in alternative.selectors.expressions():
                self._add(expression, alternative.selectors.run)

    def _add(self, expression: str, run: Selectors) -> None:
        # All attributes count already.
        if self._names is None:
            return
        try:
            reads = run.program(expression).reads
        except CelError:
            return  # an error, whatever the device looks like
        # The text reads attributes in a way that its names do not tell, such as a map over all of them.
        if reads.everything:
            self._names = None
        else:
            self._names.update(f"{domain}/{name}" for domain, name in reads.names)

    def of(self, device: Device) -> object:
        """A value that is equal for devices that look alike."""
        found = self._known.get(id(device))
        if found is None:
            found = self._known[id(device)] = self._look(device)
        return found

    def _look(self, device: Device) -> object:
        if self._names is None:
            attributes = tuple(sorted((name, str(value)) for name, value in device.attributes.items()))
        else:
            attributes = tuple((name, str(device.attribute(name))) for name in sorted(self._names))
        return (
            device.shared,
            attributes,
            tuple(sorted(device.capacity.items(), key=lambda item: item[0])),
            tuple((name, tuple(sorted(amounts.items()))) for name, amounts in device.consumes),
            device.taints,
        )
