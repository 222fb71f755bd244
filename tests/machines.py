"""Machines in shorthand: ``2x1x4x2`` in hand-written tables, the ``topo`` objects of recorded answers."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.cpu_topology import Cpu, CpuTopology, TopologyCounts

Row = tuple[int, int, int, int, int]  # cpu, core, numa, socket, uncore


def machine(shorthand: str, layout: str = "seq") -> CpuTopology:
    """``sockets x NUMA nodes per socket x cores per NUMA node x threads``; ``split`` numbers siblings far apart."""
    sockets, numa, cores, threads = map(int, shorthand.split("x"))
    return machine_from_topo({"s": sockets, "n": numa, "c": cores, "t": threads, "layout": layout, "coreid": "global"})


def machine_from_topo(topo: Mapping[str, Any]) -> CpuTopology:
    """The machine of a recorded ``topo``: regular in shorthand, or each CPU listed, perhaps with declared totals."""
    counts = topo.get("counts")
    return CpuTopology(
        cpus=tuple(Cpu(*row) for row in (_listed(topo["cpus"]) if "cpus" in topo else _regular(topo))),
        declared=counts
        and TopologyCounts(**{("uncores" if name == "uncore" else name): n for name, n in counts.items()}),
    )


def _listed(rows: list[list[int]]) -> list[Row]:
    return [(*row, row[3]) if len(row) == len(("cpu", "core", "numa", "socket")) else tuple(row) for row in rows]  # type: ignore[misc]  # JSON arrays have no length


def _regular(topo: Mapping[str, Any]) -> list[Row]:
    per_socket, per_numa, threads = topo["n"], topo["c"], topo["t"]
    cores = topo["s"] * per_socket * per_numa
    uncore_cores = topo.get("uncore_cores")
    rows: list[Row] = []
    for core in range(cores):
        numa = core // per_numa
        socket = numa // per_socket
        ids = [core * threads + h if topo["layout"] == "seq" else h * cores + core for h in range(threads)]
        core_id = {
            "global": core,
            "socket16": socket << 16 | core - socket * per_socket * per_numa,
            "minthread": min(ids),
        }[topo["coreid"]]
        rows += [(cpu, core_id, numa, socket, core // uncore_cores if uncore_cores else socket) for cpu in ids]
    return rows
