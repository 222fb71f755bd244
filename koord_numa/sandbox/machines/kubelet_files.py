"""The checkpoint files of a simulated kubelet in the kubelet's format, and the same state as a node agent publishes it.

As on real nodes, entries of terminated pods stay until the next admission, and finished init containers have memory of
size 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet, members
from koord_numa.core.kubelet import ContainerGrant, KubeletNode
from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    HeldMemory,
    KubeletCheckpoint,
    MemoryAmounts,
    NumaMemory,
)
from koord_numa.core.objects.vocabulary import ContainerKind

Grants = Mapping[str, tuple[ContainerGrant, ...]]
"""The kubelet's grants to containers, by pod uid."""

NO_NUMA: Final = "-1"


@dataclass(frozen=True, slots=True)
class KubeletMemory:
    """The state of the managers: ``grants`` of running pods and ``stale`` grants of terminated pods."""

    node: KubeletNode
    grants: Grants
    stale: Grants

    @property
    def all(self) -> Grants:
        """All grants that the files list."""
        return {**self.stale, **self.grants}


def cpu_file(memory: KubeletMemory) -> dict[str, Any]:
    """Return the content of ``cpu_manager_state``."""
    if not memory.node.pins_cpus:
        return {"policyName": "none", "defaultCpuSet": "", "checksum": 0}
    entries = {
        uid: held
        for uid, grants in sorted(memory.all.items())
        if (held := {grant.name: str(grant.cpus) for grant in grants if grant.cpus})
    }
    found: dict[str, Any] = {"policyName": "static", "defaultCpuSet": str(shared_pool(memory))}
    if entries:
        found["entries"] = entries
    return {**found, "checksum": 0}


def memory_file(memory: KubeletMemory) -> dict[str, Any]:
    """Return the content of ``memory_manager_state``."""
    if not memory.node.pins_memory:
        return {"policyName": "None", "machineState": {}, "checksum": 0}
    entries = {
        uid: held
        for uid, grants in sorted(memory.all.items())
        if (held := {grant.name: [*_block_entries(grant)] for grant in grants if grant.memory})
    }
    return {
        "policyName": "Static",
        "machineState": {
            str(numa): {
                "numberOfAssignments": sum(
                    bool(block.numa_mask >> numa & 1) for _, block in _blocks(memory.all.values())
                ),
                "memoryMap": {
                    name: {
                        "total": amounts.allocatable,
                        "systemReserved": 0,
                        "allocatable": amounts.allocatable,
                        "reserved": amounts.reserved,
                        "free": amounts.allocatable - amounts.reserved,
                    }
                    for name, amounts in table.amounts.items()
                },
                "cells": [*members(table.group)],
            }
            for numa, table in memory_tables(memory).items()
        },
        "entries": entries,
        "checksum": 0,
    }


def device_file(memory: KubeletMemory) -> dict[str, Any]:
    """Return the content of the device manager's ``kubelet_internal_checkpoint``."""
    entries = []
    for uid, grants in sorted(memory.all.items()):
        for grant in grants:
            for resource, ids in sorted(grant.devices.items()):
                by_numa: dict[str, list[str]] = {}
                for device in ids:
                    near = _near(memory.node, resource, device)
                    for numa in [str(numa) for numa in members(near)] or [NO_NUMA]:
                        by_numa.setdefault(numa, []).append(device)
                entries.append(
                    {
                        "PodUID": uid,
                        "ContainerName": grant.name,
                        "ResourceName": resource,
                        "DeviceIDs": by_numa,
                        "AllocResp": None,
                    }
                )
    registered = {name: [device.id for device in pool.devices] for name, pool in memory.node.devices.items()}
    return {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 0}


def checkpoint(memory: KubeletMemory, active: Iterable[str], gone: Iterable[str], read_at: float) -> KubeletCheckpoint:
    """Return the state as the node agent publishes it, without terminated pods.

    ``active`` and ``gone`` are pod uids.
    """
    node, stale = memory.node, memory.stale
    memory = KubeletMemory(node, memory.grants, {})
    pods = {
        uid: held
        for uid, grants in memory.grants.items()
        if (held := {grant.name: state for grant in grants if (state := _state(grant)) != ContainerState()})
    }
    running = frozenset(active)
    cores = {cpu: core.bits & -core.bits for core in node.machine.cores for cpu in CpuSet(core.bits)}
    return KubeletCheckpoint(
        read_at=read_at,
        cpus=tuple(
            CpuRow(cpu.id, cores[cpu.id].bit_length() - 1, cpu.socket, cpu.numa, cpu.uncore)
            for cpu in node.machine.cpus
        ),
        reserved_cpus=node.reserved,
        cpu_policy="static" if node.pins_cpus else "none",
        memory_policy="Static" if node.pins_memory else "None",
        cpu_options=node.config.cpu_options,
        device_numa={
            name: {device.id: device.near for device in pool.devices if device.healthy}
            for name, pool in node.devices.items()
        },
        default_cpus=shared_pool(memory).bits,
        pods=pods,
        active=running,
        gone=frozenset({*gone, *stale} - running),
        memory=memory_tables(memory) if node.pins_memory else {},
    )


def shared_pool(memory: KubeletMemory) -> CpuSet:
    """Return ``defaultCpuSet``: all CPUs that no container holds, including reserved CPUs."""
    exclusive = 0
    for grants in memory.all.values() if memory.node.pins_cpus else ():
        for grant in grants:
            exclusive |= grant.cpus.bits
    return CpuSet(memory.node.machine.bits & ~exclusive)


def memory_tables(memory: KubeletMemory) -> dict[int, NumaMemory]:
    """Return ``machineState``.

    A block of several NUMA nodes uses the lowest NUMA nodes first and makes them a group.
    """
    supply = memory.node.memory
    reserved = {numa: dict.fromkeys(amounts, 0) for numa, amounts in supply.items()}
    groups = {numa: 1 << numa for numa in supply}
    for kind, block in _blocks(memory.all.values()):
        if kind is ContainerKind.INIT:
            continue
        left = block.size
        for numa in members(block.numa_mask):
            groups[numa] = block.numa_mask
            taken = min(left, supply[numa].get(block.resource, 0) - reserved[numa].get(block.resource, 0))
            reserved[numa][block.resource] = reserved[numa].get(block.resource, 0) + taken
            left -= taken
    return {
        numa: NumaMemory(
            groups[numa],
            {name: MemoryAmounts(amount, reserved[numa][name]) for name, amount in sorted(supply[numa].items())},
        )
        for numa in sorted(supply)
    }


def _blocks(pods: Iterable[tuple[ContainerGrant, ...]]) -> list[tuple[ContainerKind, HeldMemory]]:
    return [
        (grant.kind, HeldMemory(block.mask, block.resource, block.amount))
        for grants in pods
        for grant in grants
        for block in grant.memory
    ]


def _block_entries(grant: ContainerGrant) -> Iterable[dict[str, Any]]:
    for block in grant.memory:
        size = 0 if grant.kind is ContainerKind.INIT else block.amount
        yield {"numaAffinity": [*members(block.mask)], "type": block.resource, "size": size}


def _state(grant: ContainerGrant) -> ContainerState:
    blocks = () if grant.kind is ContainerKind.INIT else grant.memory
    held = [HeldMemory(block.mask, block.resource, block.amount) for block in blocks if block.amount]
    return ContainerState(
        cpus=grant.cpus.bits,
        memory=tuple(sorted(held, key=lambda block: (block.resource, block.numa_mask, block.size))),
        devices={name: tuple(sorted(ids)) for name, ids in sorted(grant.devices.items()) if ids},
    )


def _near(node: KubeletNode, resource: str, device: str) -> int:
    pool = node.devices[resource]
    return pool.masks[pool.places[device]]
