"""Validation of the resource.k8s.io kinds.

ResourceClaims: defaults, status validation and immutable fields (resource/validation, 1.36). ResourceSlices: names and
node selectors that Kubernetes 1.38 rejects. Selectors of claims, templates and classes: length, compilation and
estimated cost.
"""

import re
from collections.abc import Iterator
from typing import Final

from koord_numa.core.cel.estimate import estimate_cost
from koord_numa.core.cel.values import CompileError
from koord_numa.sandbox.apiserver.errors import (
    Cause,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    unsupported,
)
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig, metadata_of

MOST_CONSUMERS: Final = 256
MOST_RESULTS: Final = 32
MOST_CONFIGS: Final = 64
LONGEST_EXPRESSION: Final = 10 << 10
"""Maximum bytes of an expression (resource/v1 CELSelectorExpressionMaxLength)."""

MOST_EXPRESSION_COST: Final = 1_000_000
"""Maximum estimated cost of an expression (resource/v1 CELSelectorExpressionMaxCost)."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SOURCES: Final = ("FromClass", "FromClaim")


def default_claim(claim: JsonObject) -> None:
    """Set the default allocation mode and count of a claim's requests: ExactCount, 1 device."""
    _default_spec(claim.get("spec") or {})


def default_template(template: JsonObject) -> None:
    """Set the defaults of the claim in a template."""
    _default_spec(dig(template, "spec", "spec") or {})


def _default_spec(spec: JsonObject) -> None:
    for request in dig(spec, "devices", "requests") or ():
        for demand in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if isinstance(demand, dict):
                demand.setdefault("allocationMode", "ExactCount")
                if demand["allocationMode"] == "ExactCount":
                    demand.setdefault("count", 1)


def claim_causes(claim: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a claim."""
    yield from _attribute_and_capacity_causes(claim)
    yield from _request_selector_causes(claim.get("spec") or {}, "spec")
    names = [request.get("name") for request in dig(claim, "spec", "devices", "requests") or ()]
    # Allocations and constraints refer to requests by name.
    for name in names:
        if names.count(name) > 1:
            yield duplicate("spec.devices.requests", str(name))
    status = claim.get("status") or {}
    consumers = status.get("reservedFor") or []
    if consumers and not status.get("allocation"):
        yield forbidden_field("status.reservedFor", "may not be specified when `allocated` is not set")
    if len(consumers) > MOST_CONSUMERS:
        yield invalid_value("status.reservedFor", len(consumers), f"must have at most {MOST_CONSUMERS} items")
    uids = [consumer.get("uid") for consumer in consumers]
    for consumer in consumers:
        for field in ("resource", "name", "uid"):
            if not consumer.get(field):
                yield required(f"status.reservedFor.{field}")
        if uids.count(consumer.get("uid")) > 1:
            yield duplicate("status.reservedFor.uid", str(consumer.get("uid")))
    yield from _allocation_causes(claim)


def template_causes(template: JsonObject) -> Iterator[Cause]:
    """Yield the errors in the selectors of a template's claim."""
    yield from _request_selector_causes(dig(template, "spec", "spec") or {}, "spec.spec")


def class_causes(device_class: JsonObject) -> Iterator[Cause]:
    """Yield the errors in the selectors of a DeviceClass."""
    yield from _selector_causes(dig(device_class, "spec", "selectors"), "spec.selectors")


def _request_selector_causes(spec: JsonObject, path: str) -> Iterator[Cause]:
    for at, request in enumerate(dig(spec, "devices", "requests") or ()):
        place = f"{path}.devices.requests[{at}]"
        yield from _selector_causes(dig(request, "exactly", "selectors"), f"{place}.exactly.selectors")
        for number, alternative in enumerate(request.get("firstAvailable") or ()):
            yield from _selector_causes(alternative.get("selectors"), f"{place}.firstAvailable[{number}].selectors")


def _selector_causes(selectors: list[JsonObject] | None, path: str) -> Iterator[Cause]:
    for at, selector in enumerate(selectors or ()):
        expression, place = dig(selector, "cel", "expression"), f"{path}[{at}].cel.expression"
        if not isinstance(expression, str):
            continue
        if len(expression.encode(errors="replace")) > LONGEST_EXPRESSION:
            yield too_long(place, LONGEST_EXPRESSION)
            continue
        try:
            if estimate_cost(expression) > MOST_EXPRESSION_COST:
                yield forbidden_field(place, "too complex, exceeds cost limit")
        except CompileError as error:
            yield invalid_value(place, expression, str(error))


def slice_causes(each: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a ResourceSlice.

    These are names with several slashes, and device node selectors without exactly 1 term.
    """
    for at, device in enumerate(dig(each, "spec", "devices") or ()):
        path = f"spec.devices[{at}]"
        for field in ("attributes", "capacity"):
            for name in device.get(field) or {}:
                yield from _name_causes(f"{path}.{field}", name)
        terms = dig(device, "nodeSelector", "nodeSelectorTerms")
        if device.get("nodeSelector") is not None and len(terms or ()) != 1:
            yield invalid_value(
                f"{path}.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term"
            )


def _attribute_and_capacity_causes(claim: JsonObject) -> Iterator[Cause]:
    for request in dig(claim, "spec", "devices", "requests") or ():
        for demand in (request.get("exactly") or {}, *(request.get("firstAvailable") or ())):
            for name in dig(demand, "capacity", "requests") or {}:
                yield from _name_causes("spec.devices.requests.capacity.requests", name)
    for constraint in dig(claim, "spec", "devices", "constraints") or ():
        for field in ("matchAttribute", "distinctAttribute"):
            yield from _name_causes(f"spec.devices.constraints.{field}", constraint.get(field) or "")


def _name_causes(path: str, name: str) -> Iterator[Cause]:
    if name.count("/") > 1:
        yield invalid_value(path, name, "must be a domain and a name, separated by one slash, or a name alone")


def _allocation_causes(claim: JsonObject) -> Iterator[Cause]:
    devices = dig(claim, "status", "allocation", "devices") or {}
    known = set(_request_names(claim))
    results, configs = devices.get("results") or [], devices.get("config") or []
    path = "status.allocation.devices"
    if len(results) > MOST_RESULTS:
        yield invalid_value(f"{path}.results", len(results), f"must have at most {MOST_RESULTS} items")
    if len(configs) > MOST_CONFIGS:
        yield invalid_value(f"{path}.config", len(configs), f"must have at most {MOST_CONFIGS} items")
    for result in results:
        if result.get("request") not in known:
            yield invalid_value(
                f"{path}.results.request", result.get("request"), "must be the name of a request in the claim"
            )
        if "shareID" in result and not _UUID.fullmatch(str(result["shareID"])):
            yield invalid_value(f"{path}.results.shareID", result["shareID"], "must be a lower-case UUID")
    yield from _config_causes(configs, known, f"{path}.config")


def _config_causes(configs: list[JsonObject], known: set[str], path: str) -> Iterator[Cause]:
    for config in configs:
        if config.get("source") not in _SOURCES:
            yield unsupported(f"{path}.source", str(config.get("source")), _SOURCES)
        if not isinstance(dig(config, "opaque", "parameters"), dict):
            yield invalid_value(f"{path}.opaque.parameters", "", "must be a valid JSON object")
        for name in config.get("requests") or ():
            if name not in known:
                yield invalid_value(f"{path}.requests", name, "must be the name of a request in the claim")


def _request_names(claim: JsonObject) -> Iterator[str]:
    for request in dig(claim, "spec", "devices", "requests") or ():
        yield str(request.get("name"))
        for alternative in request.get("firstAvailable") or ():
            yield f"{request.get('name')}/{alternative.get('name')}"


def claim_change_causes(old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a claim update.

    The specification and an existing allocation are immutable. A claim that is being deleted accepts no new
    reservations.
    """
    if old.get("spec") != new.get("spec"):
        yield invalid_value("spec", "", "field is immutable")
    before, after = dig(old, "status", "allocation"), dig(new, "status", "allocation")
    # Clearing the allocation deallocates the claim. Replacing it would affect pods that use the claim.
    if before and after and before != after:
        yield invalid_value("status.allocation", "", "field is immutable")
    known = {consumer.get("uid") for consumer in dig(old, "status", "reservedFor") or ()}
    added = [it for it in dig(new, "status", "reservedFor") or () if it.get("uid") not in known]
    # Otherwise the deletion of a claim that many pods share might never complete.
    if added and metadata_of(old).get("deletionTimestamp"):
        yield forbidden_field("status.reservedFor", "new entries may not be added when `deletionTimestamp` is set")
