"""
Calls to the kubelet's podresources socket and to the container runtime's socket.

Both use gRPC over unix sockets of the node. A failed call raises ``RpcError`` with the socket in its text. Responses
may be large.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc
from grpc import aio

from koord_numa.core.cpuset import CpuSet
from koord_numa.wire.proto import cri_pb2, podresources_pb2

LARGEST_ANSWER: Final = 16 << 20
"""Maximum bytes of a response. Limit of the kubelet for podresources (``pkg/kubelet/apis/podresources/constants.go``)."""

TIMEOUT: Final = 10.0
"""Seconds per call."""

_POD_RESOURCES: Final = "/v1.PodResourcesLister/"
_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment is irrelevant for a local socket
    # One polling thread is enough: the agent makes one call at a time.
    ("grpc.use_local_subchannel_pool", 1),
)


class RpcError(Exception):
    """A failed call. ``unimplemented``: the server is too old for the call."""

    def __init__(self, text: str, *, unimplemented: bool = False) -> None:
        super().__init__(text)
        self.unimplemented = unimplemented


class _Client:
    """A channel to a socket."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.path = path
        self._prefix = prefix
        # The channel connects at the first call: the agent may start before the kubelet or the runtime.
        self._channel = aio.insecure_channel(f"unix:{path}", options=_OPTIONS)
        self._calls: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(
                self._prefix + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
        try:
            return await call(request, timeout=TIMEOUT)
        except aio.AioRpcError as error:
            raise self._error(method, error) from None

    def _error(self, method: str, error: aio.AioRpcError) -> RpcError:
        unknown = error.code() is grpc.StatusCode.UNIMPLEMENTED
        return RpcError(f"{self.path}: {method}: {error.code().name}: {error.details()}", unimplemented=unknown)


class PodResourcesClient(_Client):
    """The kubelet's podresources API v1."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _POD_RESOURCES)

    async def list(self) -> Any:
        """Return ``ListPodResourcesResponse``: the resources of the active pods."""
        request = podresources_pb2.ListPodResourcesRequest()
        return await self._call("List", request, podresources_pb2.ListPodResourcesResponse)

    async def allocatable(self) -> Any:
        """Return ``AllocatableResourcesResponse``: the resources that the kubelet can allocate."""
        request = podresources_pb2.AllocatableResourcesRequest()
        return await self._call("GetAllocatableResources", request, podresources_pb2.AllocatableResourcesResponse)


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container of the runtime. ``pod_uid`` is empty for containers outside Kubernetes."""

    id: str
    name: str
    pod_uid: str


class RuntimeClient(_Client):
    """The container runtime through CRI v1."""

    LABEL_NAME: Final = "io.kubernetes.container.name"
    LABEL_UID: Final = "io.kubernetes.pod.uid"

    def __init__(self, path: Path) -> None:
        super().__init__(path, _RUNTIME)

    async def containers(self) -> list[RunningContainer]:
        """Return the running containers."""
        state = cri_pb2.ContainerStateValue(state=cri_pb2.CONTAINER_RUNNING)
        # Only running containers: a created container has no processes to compare.
        request = cri_pb2.ListContainersRequest(filter=cri_pb2.ContainerFilter(state=state))
        answer = await self._call("ListContainers", request, cri_pb2.ListContainersResponse)
        return [_container(found.id, found.labels) for found in answer.containers]

    async def update(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Set the CPUs of a running container, and its memory nodes unless empty. Other resources stay unchanged."""
        resources = cri_pb2.LinuxContainerResources(cpuset_cpus=str(cpus), cpuset_mems=mems)
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        await self._call("UpdateContainerResources", request, cri_pb2.UpdateContainerResourcesResponse)

    async def started(self) -> AsyncIterator[str]:
        """Yield the ids of started containers. Raises ``RpcError`` if the stream breaks or the runtime does not support it."""
        call = self._channel.unary_stream(
            self._prefix + "GetContainerEvents",
            request_serializer=cri_pb2.GetEventsRequest.SerializeToString,
            response_deserializer=cri_pb2.ContainerEventResponse.FromString,
        )(cri_pb2.GetEventsRequest())
        try:
            async for event in call:
                if event.container_event_type == cri_pb2.CONTAINER_STARTED_EVENT:
                    yield event.container_id
        except aio.AioRpcError as error:
            raise self._error("GetContainerEvents", error) from None
        finally:
            call.cancel()  # also if the caller stops early: the runtime would keep the stream open


def _container(container: str, labels: Mapping[str, str]) -> RunningContainer:
    return RunningContainer(
        container, labels.get(RuntimeClient.LABEL_NAME, ""), labels.get(RuntimeClient.LABEL_UID, "")
    )
