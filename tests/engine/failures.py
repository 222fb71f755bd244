"""API calls that fail a given number of times."""

from collections.abc import Callable

from koord_numa.ports import ClusterError


def raise_once(*failures: ClusterError, at: str = "bind before") -> Callable[[str], None]:
    """Each call of this kind raises the next failure, then none."""
    rest = list(failures)

    def fail(call: str) -> None:
        if call == at and rest:
            raise rest.pop(0)

    return fail
