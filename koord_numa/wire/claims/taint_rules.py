"""DeviceTaintRules: from API objects to rules (resource.k8s.io/v1, and v1beta2 of Kubernetes 1.36)."""

from collections.abc import Mapping
from typing import Any, Final

from koord_numa.core.claims.inventory import DeviceTaint, DeviceTaintRule
from koord_numa.wire.claims.resource_slice_models import DeviceTaintModel
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Problems, Strict, read


class DeviceTaintSelectorModel(Strict):
    """``spec.deviceSelector``."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Strict):
    """``spec``."""

    device_selector: DeviceTaintSelectorModel | None = None
    taint: DeviceTaintModel


_SELECTED_BY: Final = frozenset(DeviceTaintSelectorModel.model_fields)


def parse_taint_rule(obj: Mapping[str, Any]) -> DeviceTaintRule:
    """
    Return the rule in an API object. Raises ``WireError`` for a rule that cannot be read wholly.

    A selector with a member that is not known would taint more devices than it means, so that such a rule cannot be read.
    """
    top = head(obj, "DeviceTaintRule", Problems())
    path = top.path.at("spec")
    raw = top.body.get("spec") or {}
    spec = read(DeviceTaintRuleSpec, raw, path)
    selector = spec.device_selector or DeviceTaintSelectorModel()
    members = {key for key, value in (raw.get("deviceSelector") or {}).items() if value is not None}
    if unknown := sorted(members - _SELECTED_BY):
        raise path.at(f"deviceSelector.{unknown[0]}").error("this way of selecting devices is not known")
    taint = DeviceTaint(spec.taint.key, spec.taint.value or "", spec.taint.effect, rule=top.name)
    return DeviceTaintRule(
        top.name, taint, selector.driver, selector.pool, selector.device, selects=spec.device_selector is not None
    )
