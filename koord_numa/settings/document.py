"""
The scheduler's configuration: one frozen, validated object, read from a ``KoordNumaConfiguration`` in YAML.

Nothing here decides; a mistake is a ``SettingsError`` whose message names the path inside the document.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from koord_numa.core.kubelet.options import StatedOptions
from koord_numa.core.objects.vocabulary import UnknownKubeletOptions
from koord_numa.core.resources import supply
from koord_numa.core.spelling import closest
from koord_numa.settings.sections import (
    AssumedKubeletOptions,
    BackoffSettings,
    DeviceMoveSettings,
    EventSettings,
    FeatureGateSettings,
    LeaseSettings,
    PartialGangSettings,
    PreemptionSettings,
    ProfileSettings,
    RebindPolicySettings,
    Section,
    off_is_a_word,
)

API_VERSION: Final = "koord-numa.io/v1alpha1"
KIND: Final = "KoordNumaConfiguration"
MAX_MESSAGES: Final = 5
"""So many mistakes are named at once; the rest are counted."""

_WORDS: Final = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "extra_forbidden": "there is no such setting",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "int_type": "must be a whole number",
    "model_type": "must be a mapping",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}
"""Pydantic's types of mistakes in the words of YAML, where its own are those of Python; others keep its sentence."""


_UPSTREAM: Final = {
    "pluginConfig": "profiles",
    "leaderElection": "lease",
    "podInitialBackoffSeconds": "backoff.initial",
    "podMaxBackoffSeconds": "backoff.max",
    "defaultConstraints": "podTopologySpread",
    "numaTopologyPolicy": "profiles[].defaultNUMAAlignmentPolicy",
    "cpuBindPolicy": "profiles[].defaultCPUBindPolicy",
    "preferredCPUBindPolicy": "profiles[].defaultCPUBindPolicy",
}
"""Arguments of kube-scheduler and Koordinator whose name says nothing about ours."""


class SettingsError(ValueError):
    """The configuration cannot be used; the message says where and why."""


class PodSource(StrEnum):
    """Who watches pods that wait for a node: Kopf's handlers, or an informer of our own at about half the CPU per pod."""

    KOPF = "Kopf"
    INFORMER = "Informer"


class RepairDoubleHolds(StrEnum):
    """What becomes of the younger of two pods that hold the same CPUs: it is reported, gets other CPUs, or is evicted."""

    OFF = "Off"
    REBIND = "Rebind"
    EVICT = "Evict"


class KubeletReservedCpus(StrEnum):
    """Whether pods may be given the CPUs that the kubelet reserves, on nodes whose CPUs the scheduler owns."""

    KEPT = "Kept"  # as in Koordinator's code: they stay in the shared pool
    ALLOCATABLE = "Allocatable"  # as the fine-grained CPU orchestration proposal says


def _are_amounts(amounts: dict[str, str | int]) -> dict[str, str | int]:
    for name, text in amounts.items():
        if supply(name, text) < 0:
            raise ValueError(f"{name}: {text} is less than nothing")
    return amounts


class DynamicResources(StrEnum):
    """Whether pods may use ResourceClaims. ``Auto`` serves them where the cluster does (``resource.k8s.io/v1``)."""

    AUTO = "Auto"
    OFF = "Off"


class PodGroupSupport(StrEnum):
    """Whether pods may be members of groups. ``Auto`` reads the PodGroups that the cluster serves."""

    AUTO = "Auto"
    OFF = "Off"


class DeviceObjectSupport(StrEnum):
    """Whether Koordinator's Device objects are read, so that pods get devices by id. ``Auto`` reads them where the cluster serves them."""

    AUTO = "Auto"
    OFF = "Off"


class Settings(Section):
    """Everything that can be configured, with the defaults that hold without a configuration."""

    api_version: Literal["koord-numa.io/v1alpha1"] = API_VERSION
    kind: Literal["KoordNumaConfiguration"] = KIND
    profiles: Annotated[tuple[ProfileSettings, ...], Field(min_length=1)] = (ProfileSettings(),)
    pod_source: PodSource = PodSource.KOPF
    headroom: Annotated[dict[str, str | int], AfterValidator(_are_amounts)] = Field(default_factory=dict)
    repair_double_holds: Annotated[RepairDoubleHolds, BeforeValidator(off_is_a_word)] = RepairDoubleHolds.OFF
    assumed_kubelet_options: tuple[AssumedKubeletOptions, ...] = ()
    rebind_policy: RebindPolicySettings = RebindPolicySettings()
    device_moves: DeviceMoveSettings = DeviceMoveSettings()
    kubelet_reserved_cpus: Annotated[KubeletReservedCpus, Field(alias="kubeletReservedCPUs")] = KubeletReservedCpus.KEPT
    backoff: BackoffSettings = BackoffSettings()
    # The API server's failures are shorter than a pod's: a pod is retried when the cluster changes, a request by time alone.
    api_backoff: Annotated[BackoffSettings, Field(alias="apiBackoff")] = BackoffSettings(initial=0.1, max=5.0)
    wake_pause: BackoffSettings = BackoffSettings(initial=0.05, max=2.0)
    bind_concurrency: Annotated[int, Field(ge=1, le=1000)] = 32
    parked_retry_seconds: Annotated[float, Field(gt=0)] = 300.0
    settle_seconds: Annotated[float, Field(gt=0)] = 5.0
    volume_bind_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    cool_down: BackoffSettings = BackoffSettings(initial=30.0, max=600.0)
    remembered_classes: Annotated[int, Field(ge=1)] = 256
    preemption: PreemptionSettings = PreemptionSettings()
    dynamic_resources: Annotated[DynamicResources, BeforeValidator(off_is_a_word)] = DynamicResources.AUTO
    pod_groups: Annotated[PodGroupSupport, BeforeValidator(off_is_a_word)] = PodGroupSupport.AUTO
    partial_gangs: PartialGangSettings = PartialGangSettings()
    device_objects: Annotated[DeviceObjectSupport, BeforeValidator(off_is_a_word)] = DeviceObjectSupport.AUTO
    feature_gates: FeatureGateSettings = FeatureGateSettings()
    lease: LeaseSettings = LeaseSettings()
    events: EventSettings = EventSettings()

    @model_validator(mode="after")
    def _scheduler_names_are_unique(self) -> Self:
        # Two profiles of one name would leave it to their order which rules a pod gets.
        names = self.scheduler_names
        if len(set(names)) != len(names):
            raise ValueError("two profiles have the same schedulerName")
        return self

    @model_validator(mode="after")
    def _statements_are_used(self) -> Self:
        # Both halves or none: either one alone has no effect, and would look as if it had.
        assume = any(one.unknown_kubelet_options is UnknownKubeletOptions.ASSUME for one in self.profiles)
        if assume and not self.assumed_kubelet_options:
            raise ValueError("unknownKubeletOptions is Assume, and assumedKubeletOptions states nothing")
        if self.assumed_kubelet_options and not assume:
            raise ValueError("assumedKubeletOptions is used by no profile: none has unknownKubeletOptions: Assume")
        return self

    @property
    def stated_kubelet_options(self) -> tuple[StatedOptions, ...]:
        """What is stated of kubelets that publish no options, in the words of the core."""
        return tuple(
            StatedOptions(one.node_selector, one.cpu_manager_policy_options, one.topology_manager_policy_options)
            for one in self.assumed_kubelet_options
        )

    @property
    def headroom_amounts(self) -> dict[str, int]:
        """What is kept free on every node that is not dedicated: milli-CPU, bytes, pieces."""
        return {name: supply(name, text) for name, text in self.headroom.items()}

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The scheduler names that pods may ask for, in the order of the profiles."""
        return tuple(profile.scheduler_name for profile in self.profiles)

    @property
    def needs_workloads(self) -> bool:
        """Can a default spread constraint refuse a node? Then no pod is placed before its workload can be known."""
        return any(each.hard for profile in self.profiles for each in profile.pod_topology_spread.constraints)

    def profile(self, scheduler_name: str) -> ProfileSettings | None:
        """The rules for one scheduler name; ``None`` when that scheduler is not us."""
        return next((profile for profile in self.profiles if profile.scheduler_name == scheduler_name), None)


def load_settings(source: str | Path) -> Settings:
    """
    Read a ``KoordNumaConfiguration``: a ``Path`` is a YAML file, a string its text. The empty document gives the defaults.

    Raises ``SettingsError`` naming the path inside the document; unknown keys are mistakes too.
    """
    where = str(source) if isinstance(source, Path) else KIND
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        document: Any = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{where}: is not YAML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{where}: is nested too deeply") from None
    if document is None:  # an empty file, or only comments
        document = {}
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: must be a mapping, found {type(document).__name__}")
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise SettingsError(f"{where}: {_sentences(error)}") from None


def _sentences(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [item["loc"] for item in errors]
    found = [
        f"{_path(item['loc']) or 'the document'}: {_WORDS.get(item['type']) or _plain(item['msg'])}{_pointer(item)}"
        for item in errors
        # A list without its malformed items seems too short: what is inside it is the mistake.
        if not any(len(path) > len(item["loc"]) and path[: len(item["loc"])] == item["loc"] for path in paths)
    ]
    rest = len(found) - MAX_MESSAGES
    return "; ".join(found[:MAX_MESSAGES]) + (f"; and {rest} more" if rest > 0 else "")


def _pointer(error: ErrorDetails) -> str:
    """Which setting is meant by a key that does not exist, if that can be told."""
    if error["type"] != "extra_forbidden":
        return ""
    *section, key = error["loc"]
    place = "".join("[]" if isinstance(step, int) else f".{step}" for step in section).removeprefix(".")
    known = _known_keys(Settings)
    meant = _UPSTREAM.get(str(key)) or known.get(closest(str(key), known), "")
    # Only a setting of another section needs its path.
    return f"; did you mean {meant.removeprefix(f'{place}.')}?" if meant else ""


@cache
def _known_keys(section: type[BaseModel], path: str = "") -> Mapping[str, str]:
    """The keys of a section and of the sections in it, with their paths; ``[]`` stands for any entry of a list."""
    known: dict[str, str] = {}
    inner: dict[str, str] = {}
    for name, field in section.model_fields.items():
        key = field.alias or name
        known[key] = f"{path}{key}"
        is_list = get_origin(field.annotation) is tuple
        for part in _sections_in(field.annotation):
            inner = {**_known_keys(part, f"{path}{key}{'[]' if is_list else ''}."), **inner}
    return {**inner, **known}


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "must be").replace("Tuple should", "must")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
