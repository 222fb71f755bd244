"""The configuration of the agent."""

from dataclasses import dataclass
from pathlib import Path

from koord_numa.node.decided import KOORDLET_NAMESPACE
from koord_numa.node.publisher import Publish


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """
    The configuration of the agent, with paths as seen in its container.

    ``cri_socket`` may be ``None`` with ``direct_writes``. ``nri_socket`` is used for ``apply`` whenever it exists.
    ``devices`` means that a Device object is published.
    ``root_dir`` is the kubelet's directory with its checkpoint files, ``None`` if they are not read. ``daemon_set``
    (``namespace/name``) is the workload whose removal resets all containers to all CPUs. ``koordlet_namespace`` is the
    namespace in which a DaemonSet named koordlet owns the CPUs of its nodes. Interrupts are set in ``proc``, and
    ``run`` has the socket of irqbalance. ``state`` is a directory for the original affinities of interrupts, which a
    reboot empties, ``None`` if interrupts are not changed.
    """

    node: str
    sysfs: Path = Path("/sys")
    cgroups: Path = Path("/sys/fs/cgroup")
    kubelet_config: Path | None = None
    configz: bool = True
    podresources: Path | None = None
    root_dir: Path | None = None
    cri_socket: Path | None = None
    nri_socket: Path | None = None
    publish: Publish = Publish.AUTO
    owner: str = "auto"
    devices: bool = False
    apply: bool = False
    apply_memory: bool = False
    direct_writes: bool = False
    daemon_set: str = ""
    koordlet_namespace: str = KOORDLET_NAMESPACE
    proc: Path = Path("/proc")
    run: Path = Path("/run")
    state: Path | None = None
    metrics_port: int = 0
    metrics_tls: bool = False
    tls_cert_file: Path | None = None
    tls_private_key_file: Path | None = None
