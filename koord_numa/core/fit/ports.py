"""Host ports must be free on the node (kube-scheduler's NodePorts)."""

from collections.abc import Iterable
from typing import Final

from koord_numa.core.objects.constraints import HostPort
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection

_ANY: Final = "0.0.0.0"  # noqa: S104  (Kubernetes' wildcard address, nothing listens here)


def fits_ports(request: PodRequest, used: Iterable[HostPort]) -> Rejection | None:
    """Is every wanted host port free? The wildcard address clashes with every address."""
    wanted = request.constraints.host_ports
    if not wanted:
        return None
    taken = list(used)
    for port in wanted:
        if any(_clash(port, other) for other in taken):
            return Rejection(
                Reason.HOST_PORT,
                "node(s) didn't have free ports for the requested pod ports",
                f"{port.protocol} port {port.port} is taken",
            )
    return None


def _clash(one: HostPort, other: HostPort) -> bool:
    # The protocol is part of the key: TCP 80 and UDP 80 do not clash.
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.ip == other.ip or _ANY in (one.ip, other.ip)
