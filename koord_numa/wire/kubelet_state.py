"""
``koord-numa/kubelet-state`` of a topology: the kubelet's exact state, written by the node agent and read by the scheduler.

The text is JSON up to 4 KiB, base64 of zlib-compressed JSON above. The node agent imports this module, so it does without pydantic.
"""

import binascii
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    HeldMemory,
    KubeletCheckpoint,
    MemoryAmounts,
    NumaMemory,
)
from koord_numa.core.value_objects import replace
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError, quoted

MAX_PLAIN: Final = 4 << 10
"""Maximum characters of uncompressed JSON. Keeps the state of small nodes readable."""
MAX_TEXT: Final = 64 << 10
"""Characters of the annotation. The API server allows 256 KiB for all annotations of an object."""
MAX_JSON: Final = 512 << 10
"""Bytes of JSON after decompression. Bounds the memory and time that a reader spends on one annotation."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Memory = tuple[str, str, _Size]  # NUMA nodes, resource, bytes


class _Json(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the JSON objects. Unknown fields are ignored, so that a newer agent may add fields."""


class _ContainerJson(_Json, frozen=True):
    """The resources that a container holds, with CPUs as a cpu list."""

    cpus: str = ""
    memory: list[_Memory] = []
    devices: dict[str, list[str]] = {}


class _CacheJson(_Json, frozen=True):
    """The cores that share an L3 cache, with one cpu list per core."""

    socket: _Id
    numa: _Id
    l3: _Id
    cores: tuple[str, ...]


class _NumaMemoryJson(_Json, frozen=True):
    """The memory manager's table of a NUMA node: allocatable and reserved bytes by resource."""

    group: str
    amounts: dict[str, tuple[_Size, _Size]]


class _StateJson(_Json, frozen=True):
    """The whole annotation."""

    read_at: float
    cpus: tuple[_CacheJson, ...] = ()
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    cpu_policy: str | None = msgspec.field(default=None, name="cpuManagerPolicy")
    cpu_options: dict[str, bool] | None = msgspec.field(default=None, name="cpuManagerOptions")
    memory_policy: str | None = msgspec.field(default=None, name="memoryManagerPolicy")
    devices: dict[str, dict[str, list[str]]] = {}  # resource -> NUMA nodes (empty for none) -> ids
    default_cpus: str = msgspec.field(default="", name="defaultCPUs")
    pods: dict[str, dict[str, _ContainerJson]] = {}
    pod_level: dict[str, _ContainerJson] = {}
    active: list[str] = []
    gone: list[str] = []
    memory: dict[str, _NumaMemoryJson] = {}
    unknown: bool = False
    too_large: bool = False


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(_StateJson)


def kubelet_state_text(checkpoint: KubeletCheckpoint) -> str:
    """
    Return the annotation text of a checkpoint. Equal checkpoints have equal texts.

    If the text has more than ``MAX_TEXT`` characters, it contains ``tooLarge`` instead of the state. Empty if not even
    the CPU table fits.
    """
    text = _packed(checkpoint)
    if text is None:
        # Keep the parts that do not change with pods, if they fit. The device table is dropped last, since it may be
        # the largest part.
        hardware = KubeletCheckpoint(
            read_at=checkpoint.read_at,
            cpus=checkpoint.cpus,
            reserved_cpus=checkpoint.reserved_cpus,
            cpu_policy=checkpoint.cpu_policy,
            memory_policy=checkpoint.memory_policy,
            cpu_options=checkpoint.cpu_options,
            device_numa=checkpoint.device_numa,
            state_known=checkpoint.state_known,
            too_large=True,
        )
        text = _packed(hardware) or _packed(replace(hardware, device_numa={}))
    return text or ""


def kubelet_checkpoint(annotations: Mapping[str, str], path: FieldPath) -> KubeletCheckpoint | None:
    """Return the checkpoint in a topology's annotations, ``None`` without one. Raises ``WireError`` for a malformed one."""
    text = annotations.get(names.KUBELET_STATE)
    if not text:
        return None
    path = path.annotation(names.KUBELET_STATE)
    if len(text) > MAX_TEXT:
        raise path.error(f"{len(text)} characters are too many, at most {MAX_TEXT} are read")
    try:
        return _read(_DECODER.decode(text if text[0] == "{" else _unpacked(text)))
    except WireError:
        raise
    # msgspec raises ValidationError or DecodeError, deep nesting RecursionError, half a surrogate pair UnicodeError.
    except (msgspec.MsgspecError, binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise path.error(f"{quoted(text)} is not a kubelet state: {str(error)[:200]}") from None


def _packed(checkpoint: KubeletCheckpoint) -> str | None:
    data = _ENCODER.encode(_written(checkpoint))
    if len(data) <= MAX_PLAIN:
        return data.decode()
    text = b64encode(zlib.compress(data, 6)).decode()
    return text if len(text) <= MAX_TEXT and len(data) <= MAX_JSON else None


def _unpacked(text: str) -> bytes:
    engine = zlib.decompressobj()
    data = engine.decompress(b64decode(text, validate=True), MAX_JSON)
    if not engine.eof:
        raise ValueError(f"it is cut short, or has more than {MAX_JSON} bytes when decompressed")
    return data


def _written(checkpoint: KubeletCheckpoint) -> _StateJson:
    return _StateJson(
        read_at=round(checkpoint.read_at, 3),
        cpus=_caches(checkpoint.cpus),
        reserved_cpus=_list(checkpoint.reserved_cpus),
        cpu_policy=checkpoint.cpu_policy,
        cpu_options=None if checkpoint.cpu_options is None else dict(sorted(checkpoint.cpu_options.items())),
        memory_policy=checkpoint.memory_policy,
        devices={name: _by_numa(masks) for name, masks in sorted(checkpoint.device_numa.items())},
        default_cpus=_list(checkpoint.default_cpus),
        pods={
            uid: {name: _container(state) for name, state in sorted(containers.items())}
            for uid, containers in sorted(checkpoint.pods.items())
        },
        pod_level={uid: _container(state) for uid, state in sorted(checkpoint.pod_level.items())},
        active=sorted(checkpoint.active),
        gone=sorted(checkpoint.gone),
        memory={
            str(numa): _NumaMemoryJson(
                group=_list(table.group),
                amounts={name: (each.allocatable, each.reserved) for name, each in sorted(table.amounts.items())},
            )
            for numa, table in sorted(checkpoint.memory.items())
        },
        unknown=not checkpoint.state_known,
        too_large=checkpoint.too_large,
    )


def _list(bits: int) -> str:
    return str(CpuSet(bits))


def _caches(rows: Iterable[CpuRow]) -> tuple[_CacheJson, ...]:
    cores: dict[tuple[int, int, int], dict[int, int]] = {}
    for row in rows:
        shared = cores.setdefault((row.socket, row.numa, row.l3), {})
        shared[row.core] = shared.get(row.core, 0) | 1 << row.cpu
    return tuple(
        _CacheJson(socket=socket, numa=numa, l3=l3, cores=tuple([_list(bits) for _, bits in sorted(shared.items())]))
        for (socket, numa, l3), shared in sorted(cores.items())
    )


def _by_numa(masks: Mapping[str, int]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for device, mask in sorted(masks.items(), key=lambda pair: (pair[1], pair[0])):
        found.setdefault(_list(mask), []).append(device)
    return found


def _container(state: ContainerState) -> _ContainerJson:
    return _ContainerJson(
        cpus=_list(state.cpus),
        memory=[(_list(block.numa_mask), block.resource, block.size) for block in state.memory],
        devices={name: list(ids) for name, ids in sorted(state.devices.items())},
    )


def _read(state: _StateJson) -> KubeletCheckpoint:
    """Return the checkpoint. Raises ``ValueError`` for values that the JSON types do not exclude."""
    if not math.isfinite(state.read_at):
        raise ValueError(f"readAt is {state.read_at}")
    _check_word("cpuManagerPolicy", state.cpu_policy, ("none", "static"))
    _check_word("memoryManagerPolicy", state.memory_policy, ("None", "Static"))
    return KubeletCheckpoint(
        read_at=state.read_at,
        cpus=_rows(state.cpus),
        reserved_cpus=_cpus(state.reserved_cpus),
        cpu_policy=state.cpu_policy,
        memory_policy=state.memory_policy,
        cpu_options=state.cpu_options,
        device_numa={name: _masks(by_numa) for name, by_numa in state.devices.items()},
        default_cpus=_cpus(state.default_cpus),
        pods={
            uid: {name: _state(container) for name, container in containers.items()}
            for uid, containers in state.pods.items()
        },
        pod_level={uid: _state(container) for uid, container in state.pod_level.items()},
        active=frozenset(state.active),
        gone=frozenset(state.gone),
        memory=dict(sorted((_numa_id(numa), _table(table)) for numa, table in state.memory.items())),
        state_known=not state.unknown,
        too_large=state.too_large,
    )


def _check_word(key: str, word: str | None, accepted: tuple[str, ...]) -> None:
    if word is not None and word not in accepted:
        raise ValueError(f"{key} {quoted(word)} is none of {', '.join(accepted)}")


def _cpus(text: str) -> int:
    return CpuSet.parse(text).bits


def _numa_mask(text: str) -> int:
    mask = CpuSet.parse(text).bits
    if mask.bit_length() > MAX_NUMA_ID + 1:
        raise ValueError(f"NUMA node {mask.bit_length() - 1} is above {MAX_NUMA_ID}")
    return mask


def _numa_id(text: str) -> int:
    mask = _numa_mask(text)
    if mask.bit_count() != 1:
        raise ValueError(f"{quoted(text)} is not one NUMA node")
    return mask.bit_length() - 1


# The table never changes, and nodes are alike. For 512 CPUs it takes nine tenths of the parsing time of an annotation.
@lru_cache(maxsize=64)
def _rows(caches: tuple[_CacheJson, ...]) -> tuple[CpuRow, ...]:
    rows: dict[int, CpuRow] = {}
    for cache in caches:
        if cache.numa > MAX_NUMA_ID:
            raise ValueError(f"NUMA node {cache.numa} is above {MAX_NUMA_ID}")
        for text in cache.cores:
            core = CpuSet.parse(text)
            for cpu in core:
                if cpu in rows:
                    raise ValueError(f"CPU {cpu} is listed twice")
                rows[cpu] = CpuRow(cpu, next(iter(core)), cache.socket, cache.numa, cache.l3)
    return tuple(rows[cpu] for cpu in sorted(rows))


def _masks(by_numa: Mapping[str, Iterable[str]]) -> dict[str, int]:
    masks: dict[str, int] = {}
    for numa, ids in by_numa.items():
        mask = _numa_mask(numa)
        for device in ids:
            masks[device] = masks.get(device, 0) | mask
    return masks


def _state(container: _ContainerJson) -> ContainerState:
    return ContainerState(
        cpus=_cpus(container.cpus),
        memory=tuple(HeldMemory(_numa_mask(numa), resource, size) for numa, resource, size in container.memory),
        devices={name: tuple(ids) for name, ids in container.devices.items()},
    )


def _table(table: _NumaMemoryJson) -> NumaMemory:
    return NumaMemory(
        group=_numa_mask(table.group),
        amounts={name: MemoryAmounts(*amounts) for name, amounts in table.amounts.items()},
    )
