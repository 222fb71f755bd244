"""Koordinator's annotations of pods: resource-spec, numa-topology-spec and resource-status."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import orjson

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import Operator
from koord_numa.core.objects.request import Assignment, CpuBind, NumaSpec, NumaSpread, Pod, PodRequest, SharedPool
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    CpuIsolation,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    NumaSpreadMode,
    NumaSpreadScope,
    PriorityClass,
    QosClass,
    isolation_words,
)
from koord_numa.core.pod_resources import OWN_CPUS, may_use_cpuset
from koord_numa.core.pod_resources import priority_class as band_of
from koord_numa.core.resources import ResourceList, format_amount
from koord_numa.core.value_objects import replace, value_field
from koord_numa.wire import names
from koord_numa.wire.devices import device_allocated
from koord_numa.wire.errors import FieldPath, WireError, closest, meant, quoted
from koord_numa.wire.misspelled_keys import unread_pod_keys
from koord_numa.wire.parsing import EnumReader, GoJson, Head, Id, ParsedCache, Quantity, load_json, read_json, requested
from koord_numa.wire.workloads import LabelSelectorModel, label_selector

T = TypeVar("T")

BIND_POLICIES: Final = EnumReader({"": CpuBindPolicy.NONE} | {policy.value: policy for policy in CpuBindPolicy})
_SHAPES: Final = (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS)
EXCLUSIVE_POLICIES: Final = EnumReader(
    {"None": CpuExclusivePolicy.NONE} | {policy.value: policy for policy in CpuExclusivePolicy},
    also={"Default": CpuExclusivePolicy.NONE},  # the proposal's name for no policy
)
NUMA_POLICIES: Final = EnumReader(
    {"None": NumaPolicy.NONE} | {policy.value: policy for policy in NumaPolicy},
    also={  # names of the kubelet (KEP-693), and of topologyPolicies
        "best-effort": NumaPolicy.BEST_EFFORT,
        "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
        "pod-level-single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
        "SingleNUMANodePodLevel": NumaPolicy.SINGLE_NUMA_NODE,
        "SingleNUMANodeContainerLevel": NumaPolicy.SINGLE_NUMA_NODE,
    },
)
STRATEGIES: Final = EnumReader({strategy.value: strategy for strategy in NumaAllocateStrategy})
_ISOLATION: Final = frozenset(word.value for word in CpuIsolation)
_SPREAD_SCOPES: Final = EnumReader({scope.value: scope for scope in NumaSpreadScope})
_SPREAD_MODES: Final = EnumReader({mode.value: mode for mode in NumaSpreadMode})
_SELECTOR_MEMBERS: Final = ("matchLabels", "matchExpressions")
_UNSATISFIABLE: Final = EnumReader({"ScheduleAnyway": False, "DoNotSchedule": True})
NUMA_EXCLUSIVES: Final = EnumReader({exclusive.value: exclusive for exclusive in NumaExclusive})


class ResourceSpec(GoJson):
    """``scheduling.koordinator.sh/resource-spec``. The last three fields may be given here, too."""

    required: str = value_field(default="", name="requiredCPUBindPolicy")
    preferred: str = value_field(default="", name="preferredCPUBindPolicy")
    exclusive: str = value_field(default="", name="preferredCPUExclusivePolicy")
    numa_policy: str = value_field(default="", name="numaTopologyPolicy")
    numa_exclusive: str = value_field(default="", name="singleNUMANodeExclusive")
    numa_strategy: str = value_field(default="", name="numaAllocateStrategy")


class NumaTopologySpec(GoJson):
    """``scheduling.koordinator.sh/numa-topology-spec``."""

    numa_policy: str = value_field(default="", name="numaTopologyPolicy")
    numa_exclusive: str = value_field(default="", name="singleNUMANodeExclusive")
    numa_strategy: str = value_field(default="", name="numaAllocateStrategy")


class NumaSpreadSpec(GoJson):
    """``scheduling.koord-numa.io/numa-spread``."""

    selector: LabelSelectorModel | None = value_field(default=None, name="labelSelector")
    scope: str = ""
    mode: str = ""
    when: str = value_field(default="", name="whenUnsatisfiable")


class NumaAmounts(GoJson):
    """The amounts that a pod holds on a NUMA node."""

    node: Id = 0
    resources: dict[str, Quantity] = value_field(default_factory=dict)


class AnnotatedPool(GoJson):
    """A shared pool of a node, or chosen for a pod."""

    socket: Id = 0
    node: Id = 0
    cpuset: str = ""


class ResourceStatus(GoJson):
    """``scheduling.koordinator.sh/resource-status``."""

    cpuset: str = ""
    numa: list[NumaAmounts] = value_field(default_factory=list, name="numaNodeResources")
    pools: list[AnnotatedPool] = value_field(default_factory=list, name="cpuSharedPools")


def qos_class(labels: Mapping[str, str], path: FieldPath) -> QosClass:
    """
    Return the QoS class of the label, which is case-sensitive.

    The node agent compares exactly, and a pod of another class loses its CPUs.

    Raises ``WireError`` for an unknown word. Koordinator treats it as no class, but a demand is rejected rather than
    ignored.
    """
    return _exact(_QOS, labels, names.QOS_CLASS, path)


def priority_class(labels: Mapping[str, str], path: FieldPath) -> PriorityClass:
    """Return the priority class of the label, which is case-sensitive. Raises ``WireError`` for an unknown word."""
    return _exact(_PRIORITY, labels, names.PRIORITY_CLASS, path)


def _exact(known: Mapping[str, T], labels: Mapping[str, str], key: str, path: FieldPath) -> T:
    word = labels.get(key, "")
    # Case-sensitive: the node agent compares exactly, and would treat the pod as another class.
    if word not in known:
        words = sorted(filter(None, known))
        raise path.label(key).error(f"{quoted(word)} is none of {', '.join(words)}{meant(word, words)}")
    return known[word]


def policies(annotations: Mapping[str, str], path: FieldPath) -> tuple[CpuBind, NumaSpec]:
    """Return the CPU and NUMA policies of the pod. For the NUMA policy, numa-topology-spec overrides resource-spec."""
    spec, numa = annotations.get(names.RESOURCE_SPEC), annotations.get(names.NUMA_TOPOLOGY_SPEC)
    if spec is None and numa is None:
        return _NO_POLICIES
    # Long texts must not fill the cache. The uncached parser is the same function.
    reader = _policies if len(spec or "") + len(numa or "") < LONGEST_SHARED else _policies.__wrapped__
    found = reader(spec or "{}", numa or "{}")
    if isinstance(found, WireError):
        # Cached without a pod name, which is added here.
        raise WireError(path.subject, found.key, found.message)
    return found


@lru_cache(maxsize=2048)
def _policies(spec_text: str, numa_text: str) -> tuple[CpuBind, NumaSpec] | WireError:
    path = FieldPath("")
    spec_place, numa_place = path.annotation(names.RESOURCE_SPEC), path.annotation(names.NUMA_TOPOLOGY_SPEC)
    try:
        spec = read_json(ResourceSpec, spec_text, spec_place)
        topology_spec = read_json(NumaTopologySpec, numa_text, numa_place)
        bind = CpuBind(
            required=BIND_POLICIES.read(spec.required, spec_place.at("requiredCPUBindPolicy")),
            preferred=BIND_POLICIES.read(spec.preferred, spec_place.at("preferredCPUBindPolicy")),
            exclusive=EXCLUSIVE_POLICIES.read(spec.exclusive, spec_place.at("preferredCPUExclusivePolicy")),
        )
        # The message names the annotation that contains the value.
        policy_place = numa_place if topology_spec.numa_policy else spec_place
        exclusive_place = numa_place if topology_spec.numa_exclusive else spec_place
        strategy = topology_spec.numa_strategy or spec.numa_strategy
        strategy_place = numa_place if topology_spec.numa_strategy else spec_place
        numa = NumaSpec(
            policy=NUMA_POLICIES.read(
                topology_spec.numa_policy or spec.numa_policy, policy_place.at("numaTopologyPolicy")
            ),
            exclusive=NUMA_EXCLUSIVES.read(
                topology_spec.numa_exclusive or spec.numa_exclusive, exclusive_place.at("singleNUMANodeExclusive")
            ),
            strategy=STRATEGIES.read(strategy, strategy_place.at("numaAllocateStrategy")) if strategy else None,
        )
    except WireError as error:
        return error.with_traceback(None)  # cached, too: a malformed template is parsed once, not per pod
    return bind, numa


def isolated(bind: CpuBind, annotations: Mapping[str, str], path: FieldPath) -> CpuBind:
    """
    Return the CPU policies with the pod's isolation, which the node agent enforces. Raises ``WireError`` for an unknown word.

    Empty siblings imply PCPULevel, unless the pod names another exclusive policy: such pods share no cores.
    """
    text = annotations.get(names.CPU_ISOLATION)
    if text is None:
        return bind
    words = isolation_words(text)
    if not words or words - _ISOLATION:
        wrong = ", ".join(sorted(words - _ISOLATION)) or text
        accepted = ", ".join(sorted(_ISOLATION))
        raise path.annotation(names.CPU_ISOLATION).error(f"{quoted(wrong)} is none of {accepted}")
    if CpuIsolation.SIBLINGS in words and bind.exclusive is CpuExclusivePolicy.NONE:
        bind = replace(bind, exclusive=CpuExclusivePolicy.PCPU_LEVEL)
    return replace(bind, isolated=True) if CpuIsolation.ISOLCPUS in words else bind


def numa_spread(annotations: Mapping[str, str], namespace: str, path: FieldPath) -> NumaSpread | None:
    """Return how the pods of the workload are distributed over the NUMA nodes of a node. Raises ``WireError``."""
    text = annotations.get(names.NUMA_SPREAD)
    if text is None:
        return None
    place = path.annotation(names.NUMA_SPREAD)
    spec = read_json(NumaSpreadSpec, text, place)
    at = place.at("labelSelector")
    # The parser of selectors skips unknown members, and the selector would then match other pods.
    document: Any = load_json(text, place) or {}
    raw = next((value for name, value in document.items() if name.lower() == "labelselector"), None) or {}
    if unknown := sorted(set(raw) - {*_SELECTOR_MEMBERS}):
        raise at.at(unknown[0]).error(f"is unknown (accepted: {', '.join(_SELECTOR_MEMBERS)})")
    selector = label_selector(spec.selector, at)
    if selector is None or not selector.requirements:
        raise at.error("is required and must not be empty: it picks the pods of the workload")
    for need in selector.requirements:
        if need.operator in (Operator.GT, Operator.LT):
            raise at.at(need.key).error(f"{need.operator.value} is not an operator of a label selector")
        if (need.operator in (Operator.IN, Operator.NOT_IN)) is not bool(need.values):
            raise at.at(need.key).error(f"operator {need.operator.value} with {len(need.values)} values")
    return NumaSpread(
        selector=selector,
        namespace=namespace,
        scope=_SPREAD_SCOPES.read(spec.scope, place.at("scope")) if spec.scope else NumaSpreadScope.NUMA,
        mode=_SPREAD_MODES.read(spec.mode, place.at("mode")) if spec.mode else NumaSpreadMode.SPREAD,
        required=_UNSATISFIABLE.read(spec.when, place.at("whenUnsatisfiable")) if spec.when else False,
    )


def check_demands(top: Head, spec: Mapping[str, Any]) -> None:
    """
    Raise ``WireError`` for a demand that no parser reads.

    Such demands are a key that is similar to a known key, an unknown member, or KEP-693's ``spec.topology``, which the
    API server drops but a file may contain.

    Koordinator ignores all of them, and the pod runs without its demand. Running pods are not checked.
    """
    path, annotations = top.path, top.annotations
    if spec.get("topology") is not None:
        raise path.at("spec.topology").error(f"is not a field of a Pod; use the annotation {names.NUMA_TOPOLOGY_SPEC}")
    for _, sentence in unread_pod_keys(top.labels, annotations):
        raise path.error(sentence)
    if (word := annotations.get(names.REBIND, "").lower()) not in ("", "true", "false"):
        raise path.annotation(names.REBIND).error(f"{quoted(word)} is none of true, false")
    for key in _MEMBERS:
        text = annotations.get(key)
        if text is None:
            continue
        reader = _unknown_member if len(text) < LONGEST_SHARED else _unknown_member.__wrapped__
        if (found := reader(key, text)) is not None:
            name, sentence = found
            raise path.annotation(key).at(name).error(sentence)


@lru_cache(maxsize=2048)
def _unknown_member(key: str, text: str) -> tuple[str, str] | None:
    try:
        value = load_json(text, FieldPath(""))
    except WireError:
        return None  # the parser of policies reports it
    model = _MEMBERS[key]
    unknown = model.unknown_names(value)
    if not unknown:
        return None
    accepted = model.accepted_names()
    elsewhere = {name.lower(): (name, other) for other, it in _MEMBERS.items() for name in it.accepted_names()}
    if (there := elsewhere.get(unknown[0].lower())) is not None:
        return unknown[0], f"is a member of the annotation {there[1]}"
    meant = closest(unknown[0], accepted)
    return unknown[0], f"is unknown{f', did you mean {meant}?' if meant else ''} (accepted: {', '.join(accepted)})"


_MEMBERS: Final[Mapping[str, type[GoJson]]] = {
    names.RESOURCE_SPEC: ResourceSpec,
    names.NUMA_TOPOLOGY_SPEC: NumaTopologySpec,
    names.NUMA_SPREAD: NumaSpreadSpec,
}
"""Annotations with demands of a pod, with their models."""


def check_bind_policy(request: PodRequest, path: FieldPath) -> None:
    """
    Raise ``WireError`` if the pod requires a bind policy, but its QoS class or priority band does not allow exclusive CPUs.

    Koordinator ignores such a policy: ``AllowUseCPUSet`` comes first in its PreFilter.
    """
    required = request.bind.required
    # Only FullPCPUs and SpreadByPCPUs need exclusive CPUs. A pod without a QoS class is left to the rules of the
    # kubelet.
    if required not in _SHAPES or request.qos is QosClass.NONE or may_use_cpuset(request):
        return
    band = request.qos in OWN_CPUS
    why = f"an {request.qos} pod of the band {band_of(request)}" if band else f"a pod of QoS class {request.qos}"
    place = path.annotation(names.RESOURCE_SPEC).at("requiredCPUBindPolicy")
    raise place.error(f"{required} needs an LSE or LSR pod of the band koord-prod, and {why} has no exclusive CPUs")


def cached_assignment(text: str, path: FieldPath) -> Assignment:
    """Return the resources of the bound pod at ``path`` by its resource-status. Each text is parsed once. Raises ``WireError``."""
    known = _ASSIGNMENTS.get(text)
    # Malformed texts are parsed each time: the error names the pod.
    return known or _ASSIGNMENTS.put(text, assignment(text, path.annotation(names.RESOURCE_STATUS)), len(text))


def assignment(text: str, path: FieldPath) -> Assignment:
    """Return the resources of a bound pod by its resource-status."""
    status = read_json(ResourceStatus, text, path)
    numa: dict[int, dict[str, int]] = {}
    for entry in status.numa:
        held = numa.setdefault(numa_id(entry.node, path.at("numaNodeResources")), {})
        for name, amount in requested(entry.resources, path.at("numaNodeResources")).items():
            # The same NUMA node may be listed several times. The amounts add up, as in Koordinator's cache.
            held[name] = held.get(name, 0) + amount
    return Assignment(
        cpus=cpu_list(status.cpuset, path.at("cpuset")),
        numa=tuple(sorted(numa.items(), key=lambda item: item[0])),
        shared_pools=shared_pools(status.pools, path.at("cpuSharedPools")),
    )


def shared_pools(pools: list[AnnotatedPool], path: FieldPath) -> tuple[SharedPool, ...]:
    """Return the shared pools in the order of sockets and NUMA nodes."""
    found = [
        SharedPool(socket=pool.socket, numa=numa_id(pool.node, path), cpus=cpu_list(pool.cpuset, path))
        for pool in pools
    ]
    return tuple(sorted(found, key=lambda pool: (pool.socket, pool.numa)))


def cpu_list(text: str, path: FieldPath) -> CpuSet:
    """Parse a Linux cpu list such as ``0-3,8``. Raises ``WireError``."""
    if not text:
        return EMPTY
    # Checked before parsing, which would build the set first.
    if len(text) > _LONGEST_CPU_LIST:
        raise path.error(f"{quoted(text)} is too long for a cpu list")
    try:
        return CpuSet.parse(text)
    except ValueError as error:
        raise path.error(str(error)) from None


def numa_id(numa: int, path: FieldPath) -> int:
    """Return the NUMA id. Raises ``WireError`` if it does not fit into a mask."""
    if not 0 <= numa <= MAX_NUMA_ID:
        raise path.error(f"NUMA node {numa} is not in 0 to {MAX_NUMA_ID}")
    return numa


LONGEST_SHARED: Final = 4096  # characters of annotations that are cached
_LONGEST_CPU_LIST: Final = 32768  # longer than a list of all CPU ids


_QOS: Final = {qos.value: qos for qos in QosClass}
_PRIORITY: Final = {priority.value: priority for priority in PriorityClass}
_NO_POLICIES: Final = (CpuBind(), NumaSpec())

_ASSIGNMENTS: Final[ParsedCache[str, Assignment]] = ParsedCache(8 << 20)
"""Parsed annotations by the text of the annotation, which every status update of a pod repeats."""


_REQUIRED: Final = "requiredCPUBindPolicy"
_PREFERRED: Final = "preferredCPUBindPolicy"


def resource_status(pod: Pod, placement: Placement) -> dict[str, str]:
    """
    Return the annotations to write with the binding (``ports.AnnotationWriter``).

    * ``resource-status``, if the pod holds CPUs, NUMA amounts or shared pools. Empty if it replaces the status of
      another pod.
    * ``resource-spec``, if the effective policy has to be filled in, as in Koordinator's PreBind.
    * ``device-allocated``, if devices were chosen by id. Empty if it replaces that of another pod.
    * ``koord-numa/numa-nodes``: the chosen NUMA nodes, for users.
    * ``koord-numa/explores``: the kubelet options that the admission of the pod will reveal.
    """
    written: dict[str, str] = {}
    if placement.assignment != Assignment() or pod.stale_status:
        written[names.RESOURCE_STATUS] = status_text(placement.assignment)
    if placement.cpus and placement.bind is not CpuBindPolicy.NONE:
        fill_in = _filled_in if len(pod.spec_text) <= LONGEST_SHARED else _filled_in.__wrapped__
        spec = fill_in(pod.spec_text, placement.bind, placement.bind_required)
        if spec is not None:
            written[names.RESOURCE_SPEC] = spec
    if placement.devices or pod.stale_devices:
        written[names.DEVICE_ALLOCATED] = device_allocated(placement.devices)
    if placement.mask:
        written[names.NUMA_NODES] = str(CpuSet(placement.mask))
    if placement.explores:
        written[names.EXPLORES] = ",".join(placement.explores)
    return written


def status_text(held: Assignment) -> str:
    """
    Return the JSON of ``resource-status``. Empty parts are omitted.

    A shared pool is identified by socket and NUMA node only: the agent chooses its CPUs, as in the CPU orchestration
    proposal.
    """
    status: dict[str, Any] = {}
    if held.cpus:
        status["cpuset"] = str(held.cpus)
    if held.numa:
        status["numaNodeResources"] = [
            {"node": numa, "resources": quantities(amounts)} for numa, amounts in sorted(held.numa, key=_first)
        ]
    if held.shared_pools:
        status["cpuSharedPools"] = [{"socket": pool.socket, "node": pool.numa} for pool in held.shared_pools]
    return orjson.dumps(status).decode()


def quantities(amounts: ResourceList) -> dict[str, str]:
    """Return amounts as Kubernetes quantities, in the order of their names."""
    return {name: format_amount(name, amounts[name]) for name in sorted(amounts)}


@lru_cache(maxsize=2048)
def _filled_in(text: str, bind: CpuBindPolicy, required: bool) -> str | None:
    """Return the resource-spec with the effective policy filled in, or ``None`` if it is present. Keeps all other members."""
    spec = _spec(text)
    keys = {key.lower(): key for key in spec}  # Go's encoding/json matches names case-insensitively
    require, prefer = (keys.get(field.lower(), field) for field in (_REQUIRED, _PREFERRED))
    filled: dict[str, str] = {}
    if required and (spec.get(require) or CpuBindPolicy.DEFAULT) == CpuBindPolicy.DEFAULT:
        filled[require] = bind.value
    if spec.get(prefer) == CpuBindPolicy.DEFAULT or not (spec.get(prefer) or spec.get(require) or filled):
        filled[prefer] = bind.value
    return orjson.dumps({**spec, **filled}).decode() if filled else None


def _spec(text: str) -> dict[str, Any]:
    try:
        spec = load_json(text or "{}", FieldPath("").annotation(names.RESOURCE_SPEC))
    except WireError:
        return {}  # such a pod is never placed, but a running one may be rebound
    return spec if isinstance(spec, dict) else {}


def _first(entry: tuple[int, Mapping[str, int]]) -> int:
    return entry[0]
