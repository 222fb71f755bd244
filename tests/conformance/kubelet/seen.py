"""
The same sequences as a scheduler sees them: who would place a pod that the kubelet refuses, and who would refuse one that it admits.

``with_full_configuration`` knows the node's configuration and the pods, and none of the kubelet's answers but admitted or not.
``with_published_amounts`` sees the Node object, the pods, and the zones and attributes of an exporter, after every step;
``with_published_cpu_options`` the CPU manager's policy and options as well.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from koord_numa.core.kubelet.admit import Admitted
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import Charge, KubeletAdmission, KubeletState
from koord_numa.core.kubelet.view import KubeletView, kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.ledger import Holding
from tests.conformance.kubelet.admission import Sequence, Step, exported


@dataclass
class Score:
    """Right and wrong conclusions by class: the policy, and the reason of the side that said no."""

    steps: int = 0
    admits: int = 0
    wrong_yes: Counter[str] = field(default_factory=Counter)
    wrong_no: Counter[str] = field(default_factory=Counter)
    wrong_no_classes: Counter[str] = field(default_factory=Counter)  # those of docs/kubelet-model.md
    wrong_charges: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)  # the steps with a wrong yes

    def __str__(self) -> str:
        yes, no = self.wrong_yes.total(), self.wrong_no.total()
        lines = [
            f"{self.steps} pods: wrong yes {yes} ({yes / self.steps:.2%} of all)",
            f"wrong no {no} ({no / max(1, self.admits):.2%} of the {self.admits} admitted)",
        ]
        lines += [f"  wrong yes, {name}: {count}" for name, count in sorted(self.wrong_yes.items())]
        lines += [f"  wrong no, {name}: {count}" for name, count in sorted(self.wrong_no.items())]
        return "\n".join(lines + self.named)


@dataclass
class _Seen:
    """One sequence in progress."""

    sequence: Sequence
    state: KubeletState
    pods: dict[str, Holding] = field(default_factory=dict)
    view: KubeletView | None = None


def exact_view(node: str, state: KubeletState) -> KubeletView:
    """A node whose kubelet is followed step by step: its whole configuration is known, and so was every pod."""
    return KubeletView(node=node, hypotheses=(Hypothesis(state),))


def with_full_configuration(seen: _Seen) -> KubeletView:
    """Return the answer of a replay of the known pods. Rejected pods are known, too, because their failure is public."""
    return exact_view("n", seen.state)


def with_published_amounts(seen: _Seen) -> KubeletView:
    """Nothing but zones, two attributes, the Node object and the pods on the node."""
    config = seen.sequence.node.config
    return _published(seen, KubeletConfig(topology_policy=config.topology_policy, topology_scope=config.topology_scope))


def with_published_cpu_options(seen: _Seen) -> KubeletView:
    """As above, and the CPU manager's policy and options."""
    config = seen.sequence.node.config
    return _published(
        seen,
        KubeletConfig(
            topology_policy=config.topology_policy,
            topology_scope=config.topology_scope,
            cpu_policy=config.cpu_policy,
            cpu_options=config.cpu_options,
        ),
    )


def _published(seen: _Seen, config: KubeletConfig) -> KubeletView:
    node = seen.sequence.node
    published = NodeResourceTopology(
        node="n",
        owner=CpuOwner.KUBELET,
        zones=exported(node, seen.state, seen.sequence.memory),
        kubelet=config,
        distances=node.machine.distances,
    )
    return kubelet_view(Node("n", allocatable=node.allocatable), published, seen.pods.values(), (), seen.view)


def judge(
    sequence: Sequence,
    look: Callable[[_Seen], KubeletView],
    score: Score,
    asked: list[tuple[PodRequest, KubeletView]] | None = None,
) -> None:
    """Replay one sequence: before every pod the scheduler concludes, then the kubelet answers. Questions are added to ``asked``."""
    seen = _Seen(sequence, KubeletState.empty(sequence.node))
    for number, step in enumerate(sequence.steps):
        if step.request is None:
            seen.state, _ = sequence.played[number]
            seen.pods.pop(step.uid, None)
            continue
        seen.view = look(seen)
        ours = _strictly(would_admit(step.request, seen.view))
        if asked is not None:
            asked.append((step.request, seen.view))
        _note_answer(f"{sequence.id} step {number}", step, ours, seen, score)
        before = seen.state
        seen.state, verdict = sequence.played[number]
        if isinstance(ours, KubeletAdmission) and isinstance(verdict, Admitted):
            _check_charge(sequence, (before, seen.state), ours, score)
        if step.out["admit"]:
            seen.pods[step.uid] = _holding(step.uid, step.request)


def _strictly(answer: KubeletAdmission | Rejection) -> KubeletAdmission | Rejection:
    """Nothing is explored: what depends on options that are not known is a no."""
    if isinstance(answer, KubeletAdmission) and answer.explores:
        return Rejection(Reason.KUBELET_SMT, "", f"{', '.join(answer.explores)} is not known")
    return answer


def _note_answer(where: str, step: Step, ours: KubeletAdmission | Rejection, seen: _Seen, score: Score) -> None:
    """The truth is what was recorded."""
    policy = seen.sequence.node.config.topology_policy
    score.steps += 1
    score.admits += bool(step.out["admit"])
    if step.out["admit"] and isinstance(ours, Rejection):
        score.wrong_no_classes[_class_of(ours)] += 1
        score.wrong_no[f"{policy}, {ours.reason.value}: {ours.detail.split('; ')[-1]}"] += 1
    elif not step.out["admit"] and isinstance(ours, KubeletAdmission):
        score.wrong_yes[f"{policy}, {step.out['reason']}"] += 1
        score.named.append(f"  {where}: {ours.note}")


def _class_of(no: Rejection) -> str:
    """The class of a wrong no, as docs/kubelet-model.md names them."""
    if no.reason is Reason.KUBELET_SMT:
        return "CPUs that might split a core"
    return "memory groups" if "do not explain where memory is in use" in no.detail else "estimates"


def _check_charge(
    sequence: Sequence, states: tuple[KubeletState, KubeletState], ours: KubeletAdmission, score: Score
) -> None:
    before, after = (exported(sequence.node, state, sequence.memory) for state in states)
    ours_on = dict(ours.numa)
    for numa, amounts in _taken(before, after):
        short = {name for name, amount in amounts.items() if ours_on.get(numa, {}).get(name, 0) < amount}
        if short:
            score.wrong_charges[ours.charge.value] += 1
            return
    if ours.charge is Charge.PREDICTED and ours.mask is not None:
        touched = {numa for numa, _ in _taken(before, after)}
        if not touched <= set(ours_on):
            score.wrong_charges["elsewhere"] += 1


def _taken(before: tuple[Zone, ...], after: tuple[Zone, ...]) -> Iterator[tuple[int, ResourceList]]:
    for old, new in zip(before, after, strict=True):
        amounts = {name: amount - new.available[name] for name, amount in old.available.items()}
        if any(amounts.values()):
            yield old.numa, amounts


def _holding(uid: str, request: PodRequest) -> Holding:
    return Holding(PodKey("default", uid, uid), effective_requests(request), request=request)
