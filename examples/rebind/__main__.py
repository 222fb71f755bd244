# noqa: INP001  (a script: nothing imports it)
"""
A worn node is repacked before your eyes: ``python examples/rebind``, nothing else is needed.

An API server with one simulated machine runs in this process, the scheduler and the command line as processes of their own.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines import Fleet, load_descriptions

HERE = Path(__file__).parent
SCHEDULER = ("run", "--no-leader-elect", "--metrics-port", "0", "--log-level", "warning")


async def koord_numa(kubeconfig: Path, *command: str) -> asyncio.subprocess.Process:
    """Start the command line."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "koord_numa", *command, "--kubeconfig", str(kubeconfig)
    )


async def main(folder: Path) -> int:
    """Returns the exit code of the rebind. The simulated machine complains about every CPU that two pods hold at any moment."""
    async with ApiServer(crds=definitions()) as server:
        kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        rack = Fleet(server.store, load_descriptions(HERE / "machines.yaml"))
        rack.start()
        server.apply_file(HERE / "pods.yaml")
        scheduler = await koord_numa(kubeconfig, *SCHEDULER)
        try:
            asked = await koord_numa(kubeconfig, "rebind", "worn", "--wait")
            code = await asked.wait()
        finally:
            scheduler.terminate()
            await scheduler.wait()
        rack.stop()
        return code or len(rack.refusals) + len(rack.double_holds())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="koord-numa-") as temporary:
        sys.exit(asyncio.run(main(Path(temporary))))
