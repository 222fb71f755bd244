"""Annotations that nodes and their topologies share: amplification ratios and what a node reserves for itself."""

from collections.abc import Mapping
from typing import Final

from pydantic import Field, TypeAdapter

from koord_numa.core.node import NodeReservation
from koord_numa.core.resources import CPU, MILLI
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, shown
from koord_numa.wire.parsing import EnumReader, GoJson, Quantity, load_json, read_as, read_json
from koord_numa.wire.pod_annotations import cpu_list
from koord_numa.wire.quantities import current_name, requested

LARGEST_RATIO: Final = 100.0
"""Koordinator's own writers stop at 5; beyond this bound a ratio is a mistake and could overflow amounts."""

APPLY_POLICIES: Final = EnumReader({"": False, "Default": False, "ReservedCPUsOnly": True})


class Reservation(GoJson):
    """``node.koordinator.sh/reservation``."""

    resources: dict[str, Quantity] = Field({})
    reserved_cpus: str = Field("", alias="reservedCPUs")
    apply_policy: str = ""


def amplification(annotations: Mapping[str, str], place: FieldPath) -> dict[str, float] | None:
    """Ratios above 1 by resource, ``None`` without the annotation. Ratios up to 1 have no effect and are left out."""
    text = annotations.get(names.AMPLIFICATION)
    if text is None:
        return None
    place = place.annotation(names.AMPLIFICATION)
    found = read_as(_RATIOS, load_json(text, place), place) or {}
    for resource, ratio in found.items():
        if not 0 <= ratio <= LARGEST_RATIO:
            raise place.at(resource).error(f"{shown(ratio)} is not a ratio from 0 to {LARGEST_RATIO:g}")
    return {current_name(resource): float(ratio) for resource, ratio in found.items() if ratio > 1}


def reservation(annotations: Mapping[str, str], place: FieldPath) -> NodeReservation:
    """What the node keeps for itself. CPU ids, when given, replace the amount of cpu, as in Koordinator's node transformer."""
    text = annotations.get(names.RESERVATION)
    if text is None:
        return NodeReservation()
    place = place.annotation(names.RESERVATION)
    found = read_json(Reservation, text, place)
    cpus = cpu_list(found.reserved_cpus, place.at("reservedCPUs"))
    amounts = requested(found.resources, place.at("resources"))
    return NodeReservation(
        cpus=cpus,
        amounts={**amounts, CPU: len(cpus) * MILLI} if cpus else amounts,
        reserved_cpus_only=APPLY_POLICIES.read(found.apply_policy, place.at("applyPolicy")),
    )


_RATIOS: Final = TypeAdapter(dict[str, int | float] | None)
