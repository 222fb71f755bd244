"""
The PreBind step that gives a pod's claims their volumes (kube-scheduler's VolumeBinding: AssumePodVolumes, BindPodVolumes).

States of one claim of a WaitForFirstConsumer class, as this step sees them:

    unbound ──reserve──▶ planned ──do: write──▶ asked ──seen bound, volume reached from the node──▶ bound
       ▲                    │                     │ ╲── selected node taken back, other volume, claim or node gone ──▶ given up
       └──── unreserve ─────┘                     └── timeout ──▶ given up ──undo──▶ unbound, this node passed over for a while

What is written: ``claimRef`` of an existing volume, or the annotation ``volume.kubernetes.io/selected-node`` of a claim, upon which
its provisioner makes a volume for that node. Both are conditional, and asked again without harm. ``undo`` takes back only what is still
exactly as it was written here: a provisioner may have finished meanwhile. Then the claim is bound to a node that its pod has not gone
to, which is said on the pod, and the pod can only go there. After a restart the annotation is all there is: the next decision has to choose
the same node, and a node that no longer takes the pod is given up when the annotation has stood for as long as a bind may take.
"""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Final

from koord_numa.core.fit.volume_binding import VolumePlan, plan_volumes
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.volumes import ClaimKey, PersistentVolumeClaim
from koord_numa.core.selectors import matches_term
from koord_numa.engine.binding.pre_bind import OnConflict
from koord_numa.engine.cache.volume_lister import VolumeLister
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.ports import ClusterError, Conflict, Gone, NotLeader, VolumeWriter

log = getLogger(__name__)

PASSED_OVER_SECONDS: Final = 120.0
"""For so long a node on which a claim was not bound is not chosen for it again: others are tried first."""

POLL_SECONDS: Final = 1.0
"""So often at least a wait looks whether its pod still exists."""

STRANDED: Final = "VolumeBoundElsewhere"
"""Event on a pod whose claim has a volume on a node that the pod did not go to."""


def volume_binding(handle: Handle) -> "VolumeBinding | None":
    """The step of one scheduler; ``None`` where nothing is ever bound."""
    writer = handle.dependencies.volumes
    return None if writer is None else VolumeBinding(handle, writer, handle.settings.volume_bind_timeout_seconds)


@dataclass(slots=True)
class VolumeBinding:
    """``PreBindStep`` of volumes. ``timeout`` is how long a claim may take to be bound, in seconds."""

    handle: Handle
    writer: VolumeWriter
    timeout: float
    name: str = "VolumeBinding"
    on_conflict: OnConflict = OnConflict.DECIDE_AGAIN
    _plans: dict[str, VolumePlan] = field(default_factory=dict)  # by pod uid, of cycles that are being carried out
    _first_seen: dict[ClaimKey, tuple[str, float]] = field(
        default_factory=dict
    )  # selected node and since when it is known

    @property
    def lister(self) -> VolumeLister:
        """What is known of volumes."""
        return self.handle.volumes

    def applies(self, pod: Pod, placement: Placement) -> bool:  # noqa: ARG002  (the protocol of all steps)
        """Is a claim of the pod not bound yet?"""
        return any(not claim.bound for claim in self._claims(pod))

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """Take the volumes that the filter found on this node: the same facts give the same plan."""
        plan = plan_volumes(pod.request, self._node(placement), self.lister.storage())
        if isinstance(plan, Rejection):
            raise Conflict(f"volumes of pod {pod.key} on node {placement.node}: {plan.message}")
        # Kept by uid: ``do`` and ``undo`` act on what was reserved, and not on a new plan.
        self._plans[pod.key.uid] = plan
        self.lister.reserve(plan, placement.node)

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        """The volumes are free for other pods again."""
        if (plan := self._plans.pop(pod.key.uid, None)) is not None:
            self.lister.unreserve(plan, placement.node)

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """The pod is bound, and the claims say by themselves what they hold."""
        self.unreserve(pod, placement)

    async def do(self, pod: Pod, placement: Placement) -> None:
        """Write the plan, and return when every claim is bound. Raises ``Conflict`` when that cannot come about any more."""
        plan = self._plans[pod.key.uid]
        # Before any write: the pod may have gone while it waited for its turn.
        self._check_wanted(pod)
        # Existing volumes first: their binding takes a moment, provisioning may take minutes.
        for key, volume in plan.bindings:
            await self.writer.bind_volume(volume, self._claim(key))
        asked = {key: await self.writer.select_node(self._claim(key), placement.node) for key in plan.provisioned}
        while not self._all_bound(plan, placement, asked):
            await self.lister.change(POLL_SECONDS)
            self._check_wanted(pod)

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Take back what no claim has been bound by; say what cannot be taken back. The next leader goes on with what was begun."""
        # The next leader finds the annotation and goes on; taking it back would race with that.
        if self.handle.stopping or not self.handle.dependencies.lease.fresh():
            return
        plan = self._plans.get(pod.key.uid, VolumePlan())
        left = [
            key for key in _keys(plan) if (claim := self.lister.claims.items.get(key)) is not None and not claim.bound
        ]
        self.lister.fail(left, placement.node, PASSED_OVER_SECONDS)
        for key, volume in plan.bindings:
            if key in left:
                # Only what is not bound: a claim with a volume keeps it.
                await self._quietly(self.writer.release_volume(volume, self._claim(key)))
        for key in plan.provisioned:
            if key in left:
                await self._quietly(self.writer.clear_selected_node(self._claim(key), placement.node))
        for key in _keys(plan):
            claim = self.lister.claims.items.get(key)
            if claim is not None and claim.bound:
                self._say_stranded(pod, claim, placement.node)

    async def expire(self, waiting: Iterable[Pod]) -> None:
        """
        Give up nodes that were selected for claims of these waiting pods by an earlier process, and never came to anything.

        Without it a pod whose NUMA nodes are taken on that node would wait there for ever.
        """
        now, known = self.lister.clock(), self._first_seen
        # Made again at each look: claims that are bound or gone drop out by themselves.
        self._first_seen = {}
        for pod in waiting:
            for claim in self._claims(pod):
                if claim.bound or not claim.selected_node or self.lister.in_flight(claim.key):
                    continue
                node, since = known.get(claim.key, ("", now))
                # The time counts for one node: another one that was selected meanwhile starts its own.
                self._first_seen[claim.key] = (claim.selected_node, since if node == claim.selected_node else now)
                if node == claim.selected_node and now - since >= self.timeout:
                    with self.handle.quarantine.contained(subject_of(pod)):
                        await self._give_up(claim)

    async def _give_up(self, claim: PersistentVolumeClaim) -> None:
        self._first_seen.pop(claim.key, None)
        self.lister.fail([claim.key], claim.selected_node, PASSED_OVER_SECONDS)
        await self._quietly(self.writer.clear_selected_node(claim, claim.selected_node))

    async def _quietly(self, write: Awaitable[None]) -> None:
        """What cannot be taken back is met again by the next decision; it must not keep the rest from being taken back."""
        try:
            await write
        except ClusterError as error:
            log.warning("a volume binding cannot be taken back: %r", error)

    def _check_wanted(self, pod: Pod) -> None:
        """A claim may take minutes to be bound: is that still of use, and is it still for this process to wait?"""
        if self.handle.stopping or not self.handle.dependencies.lease.fresh():
            raise NotLeader("the lease is not held any more")
        if pod.key.uid not in self.handle.pending:
            raise Gone(f"pod {pod.key} waits no longer")

    def _all_bound(
        self, plan: VolumePlan, placement: Placement, asked: Mapping[ClaimKey, PersistentVolumeClaim]
    ) -> bool:
        """``asked`` are the claims that are being provisioned, as they were written."""
        node = self._node(placement)
        for key, volume in plan.bindings:
            if not self._is_bound(key, node):
                self._check_volume(key, volume)
        for key, written in asked.items():
            claim = self._claim(key)
            # A claim that the watch shows older than our own write still has the old node.
            taken_back = claim.selected_node != node.name and _is_newer(claim, written)
            if taken_back and not self._is_bound(key, node):
                raise Conflict(f"the provisioner gave up claim {claim.name} on node {node.name}")
        return all(self._is_bound(key, node) for key in _keys(plan))

    def _is_bound(self, key: ClaimKey, node: Node) -> bool:
        """Raises ``Conflict`` when the claim got a volume that is not reached from the node."""
        claim = self._claim(key)
        volume = self.lister.volumes.items.get(claim.volume) if claim.bound else None
        if volume is None:
            return False
        terms = volume.node_terms
        if terms is not None and not any(matches_term(term, node.name, node.labels) for term in terms):
            raise Conflict(
                f"claim {claim.name} was bound to volume {volume.name}, which node {node.name} does not reach"
            )
        return True

    def _check_volume(self, key: ClaimKey, name: str) -> None:
        volume = self.lister.volumes.items.get(name)
        if volume is None:
            raise Conflict(f"volume {name} was deleted before claim {key[1]} was bound")
        if volume.claim and not volume.belongs_to(self._claim(key)):
            raise Conflict(f"volume {name} was given to claim {volume.claim}")

    def _say_stranded(self, pod: Pod, claim: PersistentVolumeClaim, node: str) -> None:
        text = (
            f"claim {claim.name} was bound to volume {claim.volume} for node {node}, but the pod was not bound there: "
            "it can only go where that volume is reached; delete the claim to free it"
        )
        self.handle.dependencies.recorder.event(pod.key, warning=True, reason=STRANDED, message=text)

    def _claims(self, pod: Pod) -> Iterator[PersistentVolumeClaim]:
        for name in pod.request.constraints.claims:
            claim = self.lister.claims.items.get((pod.key.namespace, name))
            if claim is not None:
                yield claim

    def _claim(self, key: ClaimKey) -> PersistentVolumeClaim:
        claim = self.lister.claims.items.get(key)
        if claim is None:
            raise Conflict(f"claim {key[1]} was deleted")
        return claim

    def _node(self, placement: Placement) -> Node:
        info = self.handle.cache.nodes.get(placement.node)
        if info is None or info.node is None:
            raise Conflict(f"node {placement.node} was deleted")
        return info.node


def _is_newer(claim: PersistentVolumeClaim, written: PersistentVolumeClaim) -> bool:
    """The watch may lag behind a write. Resource versions of one object are ordered by number (KEP-5504)."""
    # Opaque versions are compared only where they are numbers.
    one, other = claim.resource_version, written.resource_version
    return one.isdigit() and other.isdigit() and int(one) > int(other)


def _keys(plan: VolumePlan) -> Iterator[ClaimKey]:
    yield from (key for key, _ in plan.bindings)
    yield from plan.provisioned
