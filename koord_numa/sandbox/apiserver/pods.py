"""Pods: defaults, QoS class, validation, binding, eviction, and the status of PodDisruptionBudgets."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Final

from koord_numa.core.resources import parse_quantity
from koord_numa.sandbox.apiserver.backend import Backend, Target, WriteMode
from koord_numa.sandbox.apiserver.deletion import DeleteOptions, Deleter
from koord_numa.sandbox.apiserver.documents import JsonObject, clone, dig, metadata_of, section, timestamp
from koord_numa.sandbox.apiserver.errors import (
    ApiError,
    Cause,
    bad_request,
    conflict,
    duplicate,
    forbidden_field,
    invalid,
    invalid_value,
    required,
    too_many_requests,
    unsupported,
)
from koord_numa.sandbox.apiserver.selectors import (
    Selection,
    dns_label_problem,
    from_label_selector,
    label_key_problem,
    label_value_problem,
    metadata_type_problem,
    subdomain_problem,
)
from koord_numa.sandbox.apiserver.storage import DELETED, Record, TableChange

CONTAINER_LISTS: Final = ("containers", "initContainers")

_SPEC_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
    "serviceAccountName": "default",
    "serviceAccount": "default",
}
_CONTAINER_DEFAULTS: Final = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATED_SECONDS: Final = 300  # plugin/pkg/admission/defaulttolerationseconds


def containers_of(spec: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield all containers of a pod with their field paths, init containers last."""
    for name in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(name) or ()):
            yield f"spec.{name}[{index}]", container


def default_pod(pod: JsonObject) -> None:
    """Set the defaults of a new pod (pkg/apis/core/v1/defaults.go and the default admission plugins)."""
    spec = section(pod, "spec")
    if spec.get("serviceAccount") and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for name, value in _SPEC_DEFAULTS.items():
        if spec.get(name) in (None, ""):
            spec[name] = value
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    for _, container in containers_of(spec):
        _default_container(container, host_network=bool(spec.get("hostNetwork")))
    tolerations = [toleration for toleration in spec.get("tolerations") or () if isinstance(toleration, dict)]
    for key in _TOLERATED:
        if not any(_tolerates_eviction(toleration, key) for toleration in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), added]


def _tolerates_eviction(toleration: JsonObject, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")


def _default_container(container: JsonObject, *, host_network: bool) -> None:
    for name, value in _CONTAINER_DEFAULTS.items():
        container.setdefault(name, value)
    if "imagePullPolicy" not in container:
        _, _, tag = str(container.get("image", "")).rpartition("/")[2].partition(":")
        container["imagePullPolicy"] = "Always" if tag in ("", "latest") else "IfNotPresent"
    resources = section(container, "resources")
    limits = resources.get("limits") or {}
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))


def begin_pod(pod: JsonObject) -> None:
    """Replace the status by the status of a new pod."""
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    gates = pod["spec"].get("schedulingGates")
    if gates:
        condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        condition["message"] = "Scheduling is blocked due to non-empty scheduling gates"
        pod["status"]["conditions"] = [condition]


def qos_class(spec: JsonObject) -> str:
    """Return Guaranteed, Burstable or BestEffort by CPU and memory (pkg/apis/core/helper/qos/qos.go).

    Quantities must be valid.
    """
    containers = [container for _, container in containers_of(spec)]
    requests = [_compute_resources(container, "requests") for container in containers]
    limits = [_compute_resources(container, "limits") for container in containers]
    if not any(requests) and not any(limits):
        return "BestEffort"
    guaranteed = all(len(limit) == 2 and limit == request for limit, request in zip(limits, requests, strict=True))
    return "Guaranteed" if guaranteed else "Burstable"


def _compute_resources(container: JsonObject, section_name: str) -> dict[str, Fraction]:
    amounts: Any = (container.get("resources") or {}).get(section_name) or {}
    parsed = {name: parse_quantity(amounts[name]) for name in ("cpu", "memory") if name in amounts}
    return {name: amount for name, amount in parsed.items() if amount > 0}


_RESTART: Final = ("Always", "OnFailure", "Never")
_DNS: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PULL: Final = ("Always", "IfNotPresent", "Never")
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OVERCOMMITTED: Final = ("cpu", "memory", "ephemeral-storage")  # the limit may exceed the request

CHANGE_RULE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_causes(pod: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a new pod after defaulting."""
    spec = pod["spec"]
    yield from _all_container_causes(spec)
    for field, choices in (("restartPolicy", _RESTART), ("dnsPolicy", _DNS)):
        if spec[field] not in choices:
            yield unsupported(f"spec.{field}", spec[field], choices)
    grace = spec["terminationGracePeriodSeconds"]
    if not isinstance(grace, int) or grace < 0:
        yield invalid_value("spec.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0")
    if spec.get("nodeName"):
        yield from _name_cause("spec.nodeName", spec["nodeName"])
        if spec.get("schedulingGates"):
            yield forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    yield from _name_cause("spec.schedulerName", spec["schedulerName"])
    yield from _placement_causes(spec)


def _all_container_causes(spec: JsonObject) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required("spec.containers")
    seen: set[str] = set()
    for path, container in containers_of(spec):
        yield from _container_causes(container, path)
        name = container.get("name")
        if name in seen:
            yield duplicate(f"{path}.name", name)
        seen.add(str(name))


def _placement_causes(spec: JsonObject) -> Iterator[Cause]:
    for key, value in (spec.get("nodeSelector") or {}).items():
        if label_key_problem(key):
            yield invalid_value("spec.nodeSelector", key, label_key_problem(key))
        if label_value_problem(value):
            yield invalid_value("spec.nodeSelector", value, label_value_problem(value))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration_causes(toleration, f"spec.tolerations[{index}]")


def _name_cause(path: str, name: str) -> Iterator[Cause]:
    problem = subdomain_problem(name)
    if problem:
        yield invalid_value(path, name, problem)


def _container_causes(container: JsonObject, path: str) -> Iterator[Cause]:
    name = container.get("name")
    if not name:
        yield required(f"{path}.name")
    elif dns_label_problem(str(name)):
        yield invalid_value(f"{path}.name", name, dns_label_problem(str(name)))
    if not container.get("image"):
        yield required(f"{path}.image")
    if container["imagePullPolicy"] not in _PULL:
        yield unsupported(f"{path}.imagePullPolicy", container["imagePullPolicy"], _PULL)
    yield from _resource_causes(container.get("resources") or {}, f"{path}.resources")
    for index, port in enumerate(container.get("ports") or ()):
        where = f"{path}.ports[{index}]"
        if not _is_port(port.get("containerPort")):
            yield invalid_value(
                f"{where}.containerPort", port.get("containerPort", 0), "must be between 1 and 65535, inclusive"
            )
        if port.get("hostPort") and not _is_port(port["hostPort"]):
            yield invalid_value(f"{where}.hostPort", port["hostPort"], "must be between 1 and 65535, inclusive")
        if port["protocol"] not in _PROTOCOLS:
            yield unsupported(f"{where}.protocol", port["protocol"], _PROTOCOLS)


def _is_port(number: Any) -> bool:
    return isinstance(number, int) and 1 <= number <= 65535


def _resource_causes(resources: JsonObject, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            where = f"{path}.{part}[{name}]"
            if name not in _OVERCOMMITTED and "/" not in name and not name.startswith("hugepages-"):
                yield invalid_value(where, name, "must be a standard resource type or fully qualified")
            elif label_key_problem(name):
                yield invalid_value(where, name, label_key_problem(name))
            if parse_quantity(text) < 0:
                yield invalid_value(where, text, "must be greater than or equal to 0")
            if "/" in name and not _native(name) and parse_quantity(text).denominator != 1:
                yield invalid_value(where, text, "must be an integer")
    for name, text in requests.items():
        limit = limits.get(name)
        if limit is not None and parse_quantity(text) > parse_quantity(limit):
            yield invalid_value(f"{path}.requests", text, f"must be less than or equal to {name} limit of {limit}")
        elif (
            name not in _OVERCOMMITTED
            and not _native(name)
            and (limit is None or parse_quantity(text) != parse_quantity(limit))
        ):
            yield (
                required(f"{path}.limits", "Limit must be set for non overcommitable resources")
                if limit is None
                else invalid_value(f"{path}.requests", text, f"must be equal to {name} limit of {limit}")
            )


def _native(name: str) -> bool:
    """Report whether a resource belongs to kubernetes.io.

    Such resources are not extended resources and need no limit.
    """
    return "kubernetes.io/" in name


def _toleration_causes(toleration: JsonObject, path: str) -> Iterator[Cause]:
    operator = toleration.get("operator") or "Equal"
    if operator not in ("Equal", "Exists"):
        yield unsupported(f"{path}.operator", operator, ("Equal", "Exists"))
    if not toleration.get("key") and operator != "Exists":
        yield invalid_value(
            f"{path}.operator",
            operator,
            'operator must be Exists when `key` is empty, which means "match all values and all keys"',
        )
    if operator == "Exists" and toleration.get("value"):
        yield invalid_value(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
    if toleration.get("effect") and toleration["effect"] not in _EFFECTS:
        yield unsupported(f"{path}.effect", toleration["effect"], _EFFECTS)


def pod_change_causes(old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a pod update through the main resource (ValidatePodUpdate)."""
    before, after = clone(old["spec"]), clone(new["spec"])
    gates_before, gates_after = (_gate_names(spec) for spec in (before, after))
    if not gates_after <= gates_before:
        yield forbidden_field("spec.schedulingGates", "only deletion is allowed, but found new scheduling gates")
    if _lost_tolerations(before, after):
        yield forbidden_field(
            "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
        )
    if (
        gates_before and metadata_of(old).get("deletionTimestamp") is None
    ):  # node selector and affinity of a gated pod may change
        for spec in (before, after):
            spec.pop("nodeSelector", None)
            spec.pop("affinity", None)
    for spec in (before, after):
        for name in ("tolerations", "activeDeadlineSeconds", "schedulingGates"):
            spec.pop(name, None)
        for _, container in containers_of(spec):
            container.pop("image", None)
    if before != after:
        yield forbidden_field("spec", CHANGE_RULE)


def _gate_names(spec: JsonObject) -> set[str]:
    return {gate.get("name", "") for gate in spec.get("schedulingGates") or ()}


def _lost_tolerations(before: JsonObject, after: JsonObject) -> bool:
    return any(
        kept not in _untimed(after.get("tolerations") or ()) for kept in _untimed(before.get("tolerations") or ())
    )


def _untimed(tolerations: Sequence[JsonObject]) -> list[JsonObject]:
    return [{name: value for name, value in one.items() if name != "tolerationSeconds"} for one in tolerations]


_BUDGETS: Final = "poddisruptionbudgets.policy"
_ENDED: Final = ("Succeeded", "Failed")


class PodVerbs:
    """Binding and eviction of pods."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        """Create the verbs. ``deleter`` deletes evicted pods."""
        self._backend = backend
        self._deleter = deleter

    def bind(self, target: Target, binding: JsonObject, dry_run: WriteMode = WriteMode.NO) -> None:
        """Assign a pod to a node and merge the annotations and labels of the binding in the same write.

        As in pkg/registry/core/pod/storage, neither the existence of the node nor annotation keys are checked. Raises
        ``ApiError``: 400 for a malformed binding, 404 for an absent pod, 422 for an invalid target, and 409 if uid or
        resourceVersion do not match or the pod is bound, gated or being deleted.
        """
        problem = metadata_type_problem(binding.get("metadata") or {})
        if problem:
            raise bad_request(f'Binding in version "v1" cannot be handled as a Binding: {problem}')
        meta = metadata_of(binding)
        node = dig(binding, "target", "name")
        self._check_binding(target, binding)
        record = self._backend.get(target)
        for name, wanted, found in (
            ("UID", meta.get("uid"), record.uid),
            ("ResourceVersion", meta.get("resourceVersion"), str(record.revision)),
        ):
            if wanted and wanted != found:
                why = f"StorageError: invalid object, Code: 4, Key: /registry/pods/{target.namespace}/{target.name}, ResourceVersion: 0, "
                raise conflict(
                    target.kind,
                    target.name,
                    f"{why}AdditionalErrorMsg: Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {found}",
                )
        pod = record.load()
        self._check_bindable(target, record, pod)
        pod["spec"]["nodeName"] = node
        for field in ("annotations", "labels"):
            if meta.get(field):
                section(pod["metadata"], field).update(meta[field])
        _set_scheduled(pod)
        # The spec changes, although a bind is not an update of the pod.
        if "generation" in pod["metadata"]:
            pod["metadata"]["generation"] += 1
        if dry_run is WriteMode.NO:
            self._backend.put(target.kind, pod)

    def _check_binding(self, target: Target, binding: JsonObject) -> None:
        name = metadata_of(binding).get("name")
        if name and target.name and name != target.name:
            raise bad_request(f"name in URL does not match name in Binding object ({name} is not {target.name})")
        # kube-apiserver returns the plain error of ValidatePodBinding here.
        if not dig(binding, "target", "name"):
            raise ApiError(500, "", "target.name: Required value")
        causes = []
        if dig(binding, "target", "kind") not in (None, "", "Node", "Minion"):
            causes.append(unsupported("target.kind", dig(binding, "target", "kind"), ("Node", "<empty>")))
        if causes:
            raise invalid(target.kind, target.name, causes)

    def _check_bindable(self, target: Target, record: Record, pod: JsonObject) -> None:
        name = target.name
        if record.deleting:
            raise conflict(target.kind, name, f"pod {name} is being deleted, cannot be assigned to a host")
        bound = pod["spec"].get("nodeName")
        if bound:
            raise conflict(target.kind, name, f'pod {name} is already assigned to node "{bound}"')
        if pod["spec"].get("schedulingGates"):
            raise conflict(target.kind, name, f"pod {name} has non-empty .spec.schedulingGates")

    def evict(self, target: Target, eviction: Any) -> None:
        """Delete a pod unless a PodDisruptionBudget forbids it.

        Raises ``ApiError`` with code 429 if the budget is exhausted and 500 if several budgets cover the pod.
        """
        if not isinstance(eviction, dict):
            raise bad_request("an Eviction must be an object")
        options = DeleteOptions.parse(eviction.get("deleteOptions") or {})
        record = self._backend.get(target)
        pod = record.load()
        # The eviction of a pod that does not run disrupts no application and no budget protects it (canIgnorePDB).
        if not record.deleting and dig(pod, "status", "phase") not in (*_ENDED, "Pending"):
            self._spend_budget(target, record, pod, options)
        self._deleter.delete(target, options)

    def _spend_budget(self, target: Target, record: Record, pod: JsonObject, options: DeleteOptions) -> None:
        budgets = [
            budget
            for budget in self._backend.storage.table(_BUDGETS).in_namespace(target.namespace)
            if covers(budget, record)
        ]
        if not budgets:
            return
        # Upstream does not define which budget is decremented. It returns 500, because clients would retry 429.
        if len(budgets) > 1:
            raise ApiError(
                500,
                "InternalError",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        budget = budgets[0].load()
        status = section(budget, "status")
        healthy, desired = status.get("currentHealthy") or 0, status.get("desiredHealthy") or 0
        if not is_healthy(pod) and (
            dig(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow" or 0 < desired <= healthy
        ):
            return
        name = budget["metadata"]["name"]
        if (status.get("disruptionsAllowed") or 0) <= 0:
            message = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": message}
            raise too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.", 0, {"causes": [cause]}
            )
        if options.dry_run is WriteMode.NO:
            # Decremented immediately: the next eviction may come before the disruption controller recounts.
            status["disruptionsAllowed"] -= 1
            section(status, "disruptedPods")[target.name] = timestamp()
            self._backend.put(self._backend.registry.named(_BUDGETS), budget)


def covers(budget: Record, pod: Record) -> bool:
    """Report whether a budget's selector selects the pod.

    A missing selector selects no pod, an empty selector selects all pods.
    """
    selector = dig(budget.load(), "spec", "selector")
    return selector is not None and Selection(labels=from_label_selector(selector)).matches(pod)


def is_healthy(pod: JsonObject) -> bool:
    """Report whether a pod counts as healthy for its budget: it is Ready."""
    return any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in dig(pod, "status", "conditions") or ()
    )


def _set_scheduled(pod: JsonObject) -> None:
    status = section(pod, "status")
    conditions = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    since = timestamp()
    status["conditions"] = [
        *conditions,
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
    ]


class BudgetController:
    """Controller of the budget status. It recomputes the budgets of a namespace when a pod or budget in it changes.

    Without budgets in the namespace a pod change costs nothing.
    """

    def __init__(self, backend: Backend) -> None:
        """Subscribe to changes of pods and budgets."""
        self._backend = backend
        backend.storage.table("pods").listeners.append(self._pod_changed)
        backend.storage.table(_BUDGETS).listeners.append(self._budget_changed)

    def _pod_changed(self, change: TableChange) -> None:
        for budget in self._backend.storage.table(_BUDGETS).in_namespace(change.record.key.namespace):
            self._refresh(budget)

    def _budget_changed(self, change: TableChange) -> None:
        """Refresh a budget whose specification changed. A status that a client wrote stays until a pod changes."""
        if change.kind == DELETED:
            return
        if change.previous is None or dig(change.previous.load(), "spec") != dig(change.record.load(), "spec"):
            self._refresh(change.record)

    def _refresh(self, budget: Record) -> None:
        shown = budget.shared(budget.api_version)
        status = self._status(shown, budget.key.namespace)
        if dig(shown, "status") != status:
            document = budget.load()
            document["status"] = status
            self._backend.put(self._backend.registry.named(_BUDGETS), document)

    def _status(self, budget: JsonObject, namespace: str) -> JsonObject:
        spec = budget.get("spec") or {}
        selection = Selection(labels=from_label_selector(spec.get("selector")))
        records = (
            self._backend.storage.table("pods").in_namespace(namespace) if spec.get("selector") is not None else []
        )
        pods = [
            record.shared(record.api_version)
            for record in records
            if selection.matches(record) and record.fields["status.phase"] not in _ENDED
        ]
        healthy = sum(is_healthy(pod) and not pod["metadata"].get("deletionTimestamp") for pod in pods)
        if spec.get("maxUnavailable") is not None:
            desired = max(0, len(pods) - _scaled(spec["maxUnavailable"], len(pods)))
        else:
            desired = _scaled(spec.get("minAvailable", 1), len(pods))
        allowed = max(0, healthy - desired)
        return {
            "observedGeneration": dig(budget, "metadata", "generation"),
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": allowed,
            "expectedPods": len(pods),
        }


def _scaled(amount: Any, whole: int) -> int:
    """Return an absolute number, or a percentage of ``whole`` rounded up."""
    if isinstance(amount, str) and amount.endswith("%") and amount[:-1].isdigit():
        return ceil(Fraction(int(amount[:-1]) * whole, 100))
    return amount if isinstance(amount, int) else 0
