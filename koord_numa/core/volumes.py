"""Persistent volumes, claims and storage classes, as far as they decide on which nodes a pod can run."""

from dataclasses import dataclass

from koord_numa.core.constraints import NodeTerm


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """
    A volume and the nodes that reach it.

    ``node_terms`` is its required node affinity (any of these; ``None``: every node). ``zones`` are the zone and region
    labels of the volume itself, each with the values of which a node must have one. ``claim`` is ``namespace/name``.
    """

    name: str
    node_terms: tuple[NodeTerm, ...] | None = None
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    claim: str = ""
    claim_uid: str = ""
    storage_class: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """A claim: bound to ``volume``, or waiting. ``selected_node`` is where a provisioner was told to make its volume."""

    namespace: str
    name: str
    uid: str = ""
    volume: str = ""  # spec.volumeName
    bound: bool = False  # bound completely: the volume controller has agreed
    storage_class: str | None = None  # None: the cluster's default; "": no class
    selected_node: str = ""
    owner: str = ""  # uid of the controlling owner: the pod, for a claim made from an ephemeral volume
    deleting: bool = False
    read_write_once_pod: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A way to make volumes. ``waits`` (WaitForFirstConsumer): only after a node was chosen, within ``topologies``."""

    name: str
    waits: bool = False
    provisions: bool = True  # False for kubernetes.io/no-provisioner: volumes are made by hand
    topologies: tuple[NodeTerm, ...] = ()  # allowedTopologies: any of these; none means everywhere
    default: bool = False
    problem: str = ""
