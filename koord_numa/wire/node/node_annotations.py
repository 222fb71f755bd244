"""Annotations that nodes and their topologies share: amplification ratios and what a node reserves for itself."""

from collections.abc import Mapping
from typing import Final

from pydantic import Field, TypeAdapter

from koord_numa.core.objects.node import NodeReservation
from koord_numa.core.resources import CPU, MILLI
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.parsing import EnumReader, GoJson, Quantity, load_json, read_as, read_json
from koord_numa.wire.pod.pod_annotations import cpu_list
from koord_numa.wire.quantities import current_name, requested

LARGEST_RATIO: Final = 100.0
"""Koordinator's own writers stop at 5; beyond this bound a ratio is a mistake and could overflow amounts."""

APPLY_POLICIES: Final = EnumReader({"": False, "Default": False, "ReservedCPUsOnly": True})


class Reservation(GoJson):
    """``node.koordinator.sh/reservation``."""

    resources: dict[str, Quantity] = Field({})
    reserved_cpus: str = Field("", alias="reservedCPUs")
    apply_policy: str = ""


def amplification(annotations: Mapping[str, str], path: FieldPath) -> dict[str, float] | None:
    """Ratios above 1 by resource, ``None`` without the annotation. Ratios up to 1 have no effect and are left out."""
    text = annotations.get(names.AMPLIFICATION)
    if text is None:
        return None
    path = path.annotation(names.AMPLIFICATION)
    found = read_as(_RATIOS, load_json(text, path), path) or {}
    for resource, ratio in found.items():
        if not 0 <= ratio <= LARGEST_RATIO:
            raise path.at(resource).error(f"{quoted(ratio)} is not a ratio from 0 to {LARGEST_RATIO:g}")
    # A ratio up to 1 has no effect upstream, and would make the node look amplified.
    return {current_name(resource): float(ratio) for resource, ratio in found.items() if ratio > 1}


def reservation(annotations: Mapping[str, str], path: FieldPath) -> NodeReservation:
    """What the node keeps for itself. CPU ids, when given, replace the amount of cpu, as in Koordinator's node transformer."""
    text = annotations.get(names.RESERVATION)
    if text is None:
        return NodeReservation()
    path = path.annotation(names.RESERVATION)
    found = read_json(Reservation, text, path)
    cpus = cpu_list(found.reserved_cpus, path.at("reservedCPUs"))
    amounts = requested(found.resources, path.at("resources"))
    return NodeReservation(
        cpus=cpus,
        # By id they count as whole CPUs, whatever the amount says.
        amounts={**amounts, CPU: len(cpus) * MILLI} if cpus else amounts,
        reserved_cpus_only=APPLY_POLICIES.read(found.apply_policy, path.at("applyPolicy")),
    )


_RATIOS: Final = TypeAdapter(dict[str, int | float] | None)
