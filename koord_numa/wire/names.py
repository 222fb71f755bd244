"""Names of all annotations, labels, API groups and resources that are read or written. No other module spells them."""

from collections.abc import Mapping
from typing import Final

# The scheduler, where it is not configured
DEFAULT_SCHEDULER: Final = "koord-numa"
"""Scheduler name of pods, and name of the Lease."""
LEASE_NAMESPACE: Final = "koord-numa"
DEFAULT_PORT: Final = 10251
"""Port for plain HTTP, the former insecure port of kube-scheduler."""

# API groups
TOPOLOGY_GROUP: Final = "topology.node.k8s.io"
TOPOLOGY_VERSIONS: Final = ("v1alpha1", "v1alpha2")  # v1alpha2 is the storage version
TOPOLOGY_PLURAL: Final = "noderesourcetopologies"
TOPOLOGY_KIND: Final = "NodeResourceTopology"
SCHEDULING_GROUP: Final = "scheduling.koordinator.sh"
REBIND_VERSION: Final = "v1alpha1"
REBIND_PLURAL: Final = "rebindresources"
REBIND_KIND: Final = "RebindResource"
DEVICE_VERSION: Final = "v1alpha1"
DEVICE_PLURAL: Final = "devices"
DEVICE_KIND: Final = "Device"

# Pods: labels and annotations of Koordinator
QOS_CLASS: Final = "koordinator.sh/qosClass"
PRIORITY_CLASS: Final = "koordinator.sh/priority-class"
RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
RESERVATION_AFFINITY: Final = "scheduling.koordinator.sh/reservation-affinity"
DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"

# Pods: annotations of this project and of Kubernetes
REBIND: Final = "koord-numa/rebind"
REBIND_REASON: Final = "koord-numa/rebind-reason"
NUMA_NODES: Final = "koord-numa/numa-nodes"
"""The chosen NUMA nodes as a list such as ``0`` or ``0-1``, for users and for custom columns of kubectl."""
NUMA_SPREAD: Final = "scheduling.koord-numa.io/numa-spread"
"""JSON object: the distribution of a workload's pods over the NUMA nodes of a node."""
CPU_ISOLATION: Final = "scheduling.koord-numa.io/cpu-isolation"
"""Comma-separated words: ``interrupts``, ``siblings``, ``isolcpus``. What the pod requests beyond exclusive CPUs."""
EXPLORES: Final = "koord-numa/explores"
"""Kubelet options that the placement of the pod is meant to reveal, comma-separated."""
MIRROR: Final = "kubernetes.io/config.mirror"

# Gangs: Koordinator's, and the label of scheduler-plugins
GANG_NAME: Final = "gang.scheduling.koordinator.sh/name"
GANG_MIN: Final = "gang.scheduling.koordinator.sh/min-available"
GANG_MODE: Final = "gang.scheduling.koordinator.sh/mode"
GANG_GROUPS: Final = "gang.scheduling.koordinator.sh/groups"
GANG_MATCH_POLICY: Final = "gang.scheduling.koordinator.sh/match-policy"
GANG_MATCH_POLICY_ALIAS: Final = "pod-group.scheduling.sigs.k8s.io/match-policy"
GANG_TIMEOUT: Final = "gang.scheduling.koordinator.sh/timeout"
GANG_TOPOLOGY: Final = "gang.scheduling.koordinator.sh/network-topology-spec"
POD_GROUP_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
GANG_NAME_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/name"  # deprecated
GANG_MIN_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/min-available"  # deprecated
X_POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
TOPOLOGY_LAYERS: Final[Mapping[str, str]] = {
    "datacenterLayer": "network.topology.nvidia.com/datacenter",
    "spineLayer": "network.topology.nvidia.com/spine",
    "blockLayer": "network.topology.nvidia.com/block",
    "acceleratorLayer": "network.topology.nvidia.com/accelerator",
    "nodeTopologyLayer": "kubernetes.io/hostname",
}
"""Layers of Koordinator's network topology, and the labels that NVIDIA topograph writes."""

# Nodes
NODE_NUMA_POLICY: Final = "node.koordinator.sh/numa-topology-policy"
NODE_NUMA_POLICY_PROPOSED: Final = "node.koordinator.sh/numa-topology-alignment-policy"
NODE_BIND_POLICY: Final = "node.koordinator.sh/cpu-bind-policy"
NODE_NUMA_STRATEGY: Final = "node.koordinator.sh/numa-allocate-strategy"
NODE_NUMA_STRATEGY_PROPOSED: Final = "node.koordinator.sh/numa-allocate-policy"

NODE_CPU_ISOLATION: Final = "koord-numa.io/cpu-isolation"
"""Words as in the annotation of pods, separated by dots: ``interrupts.siblings``. For all pods with CPUs of their own."""

# Nodes and their topologies
AMPLIFICATION: Final = "node.koordinator.sh/resource-amplification-ratio"
RESERVATION: Final = "node.koordinator.sh/reservation"

# Device objects, and the first two labels on Nodes too
GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"  # annotation
HONOR: Final = "Honor"

# NodeResourceTopologies: annotations, labels
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
CPU_SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
BE_CPU_SHARED_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
SYSTEM_QOS_RESOURCE: Final = "node.koordinator.sh/system-qos-resource"
CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
FINGERPRINT_ANNOTATION: Final = "topology.node.k8s.io/fingerprint"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_KOORDINATOR: Final = "Koordinator"
MANAGED_BY_KOORD_NUMA: Final = "koord-numa"  # of the node agent, if it is the only publisher
KUBELET_OPTIONS: Final = "koord-numa/kubelet-options"
"""JSON object with the attributes below by name, used when another publisher owns the attribute list. The attribute list wins."""
PINNING: Final = "koord-numa/pinning"
"""JSON object: how the node agent pins containers to CPUs, and for how many seconds they ran on other CPUs before."""
CPUSET_DIFFERENCES: Final = "koord-numa/cpuset-differences"
"""JSON object: differences between the CPUs a pod runs on and the allocated CPUs, by ``namespace/name``. Absent without differences."""
KUBELET_STATE: Final = "koord-numa/kubelet-state"
"""Exact state of the kubelet's resource managers, as the node agent reads it. See ``wire/kubelet_state.py``."""
HELD_DEVICES: Final = "koord-numa/held-devices"
"""Device objects of the node agent. JSON object: the devices that pods (``namespace/name``) hold, as in ``device-allocated``."""
PCI_DEVICES: Final = "koord-numa/pci-devices"
"""JSON list of PCI devices: ``address``, ``class``, ``node`` (NUMA) and ``root`` (host bridge), the last two if known."""

# NodeResourceTopologies: top-level attributes of NFD's topology updater and the resource topology exporter
ATTRIBUTE_TOPOLOGY_POLICY: Final = "topologyManagerPolicy"
ATTRIBUTE_TOPOLOGY_SCOPE: Final = "topologyManagerScope"
ATTRIBUTE_MAX_NUMA_NODES: Final = "topologyManagerMaxNUMANodes"
ATTRIBUTE_TOPOLOGY_OPTION: Final = "topologyManagerOption"  # prefix: topologyManagerOptionPreferClosestNumaNodes
ATTRIBUTE_FINGERPRINT: Final = "nodeTopologyPodsFingerprint"
ATTRIBUTE_FINGERPRINT_METHOD: Final = "nodeTopologyPodsFingerprintMethod"
ATTRIBUTE_NRI_POLICY: Final = "TopologyPolicy"  # of NRI resource policy plugins: balloons, topology-aware
# NodeResourceTopologies: attributes of the kubelet by the same convention, which no other exporter publishes yet
ATTRIBUTE_CPU_POLICY: Final = "cpuManagerPolicy"  # none, static
ATTRIBUTE_CPU_OPTION: Final = "cpuManagerOption"  # prefix: cpuManagerOptionFullPcpusOnly
ATTRIBUTE_CPU_OPTIONS: Final = "cpuManagerPolicyOptions"  # all in one value: full-pcpus-only=true,align-by-socket=false
ATTRIBUTE_MEMORY_POLICY: Final = "memoryManagerPolicy"  # None, Static
ATTRIBUTE_RESERVED_CPUS: Final = "reservedCPUs"  # a cpu list
ATTRIBUTE_ISOLATED_CPUS: Final = "isolatedCPUs"  # a cpu list: the kernel's isolcpus
ATTRIBUTE_RESERVED_MEMORY: Final = "reservedMemory"  # of a zone, bytes

ZONE_TYPE_NUMA: Final = "Node"
ZONE_PREFIX: Final = "node-"

# Nodes that only this scheduler places pods on
DEDICATED: Final = "koord-numa.io/dedicated"

# Leader election
LEASE_COMPONENT: Final = ("app.kubernetes.io/component", "koord-numa-scheduler")
LEASE_SCHEDULERS: Final = "koord-numa.io/scheduler-names"  # comma-separated: scheduler names of the holder

# Persistent volumes, claims and storage classes
ZONE_LABELS: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
LEGACY_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
STORAGE: Final = "storage"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"

# Resource claims
RESERVED_AT: Final = "koord-numa/reserved-at"
"""Time when a new scheduling cycle found the reservation in place, RFC 3339. Writing it creates a new version of the claim."""

# Resources
BATCH_CPU: Final = "kubernetes.io/batch-cpu"
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
RENAMED_RESOURCES: Final[Mapping[str, str]] = {
    "koordinator.sh/batch-cpu": BATCH_CPU,
    "koordinator.sh/batch-memory": BATCH_MEMORY,
    "kubernetes.io/rdma": "koordinator.sh/rdma",
    "kubernetes.io/fpga": "koordinator.sh/fpga",
    "kubernetes.io/gpu": "koordinator.sh/gpu",
    "kubernetes.io/gpu-core": "koordinator.sh/gpu-core",
    "kubernetes.io/gpu-memory": "koordinator.sh/gpu-memory",
    "kubernetes.io/gpu-memory-ratio": "koordinator.sh/gpu-memory-ratio",
}
"""Deprecated names and their replacements by Koordinator's informers."""
