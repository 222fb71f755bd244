"""Pod affinity and anti-affinity terms, with the pod's own label values folded in where they ask for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import Field

from koord_numa.core.objects.constraints import Operator, PodTerm, PreferredPodTerm, Requirement
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import Strict, Weight
from koord_numa.wire.selectors import LabelSelectorModel, label_selector


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The pod whose terms are read."""

    namespace: str
    labels: Mapping[str, str]


class PodTermModel(Strict):
    """One pod affinity term."""

    topology_key: str
    label_selector: LabelSelectorModel | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelectorModel | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPodModel(Strict):
    """A weighted pod affinity term."""

    weight: Weight
    pod_affinity_term: PodTermModel


class AffinityTerms(Strict):
    """Required and preferred terms."""

    required: list[PodTermModel] | None = Field(None, alias="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredPodModel] | None = Field(None, alias="preferredDuringSchedulingIgnoredDuringExecution")


def fold_keys(pod: OwnPod, keys: Iterable[str] | None, operator: Operator = Operator.IN) -> list[Requirement]:
    """Conditions on the pod's own label values; a key that the pod does not carry is ignored, as Kubernetes does."""
    return [Requirement(key, operator, (pod.labels[key],)) for key in keys or () if key in pod.labels]


def pod_terms(models: Iterable[PodTermModel], pod: OwnPod, path: FieldPath) -> tuple[PodTerm, ...]:
    """Required terms, all of which must hold."""
    return tuple(_term(model, pod, path) for model in models)


def preferred_pod_terms(
    models: Iterable[PreferredPodModel], pod: OwnPod, path: FieldPath
) -> tuple[PreferredPodTerm, ...]:
    """Weighted terms."""
    return tuple(PreferredPodTerm(model.weight, _term(model.pod_affinity_term, pod, path)) for model in models)


def _term(model: PodTermModel, pod: OwnPod, path: FieldPath) -> PodTerm:
    own = [
        *fold_keys(pod, model.match_label_keys),
        *fold_keys(pod, model.mismatch_label_keys, Operator.NOT_IN),
    ]
    # A set in a fixed order, so that equal terms are equal values.
    namespaces = tuple(sorted(set(model.namespaces or ())))
    if not namespaces and model.namespace_selector is None:
        # Only without a selector: an empty list beside one means "by the selector alone".
        namespaces = (pod.namespace,)
    return PodTerm(
        topology_key=model.topology_key,
        selector=label_selector(model.label_selector, path.at("labelSelector"), own),
        namespaces=namespaces,
        namespace_selector=label_selector(model.namespace_selector, path.at("namespaceSelector")),
    )
