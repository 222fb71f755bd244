"""Growing pauses between attempts."""

from koord_numa.settings import BackoffSettings


def pause(backoff: BackoffSettings, attempts: int, dice: float) -> float:
    """Seconds to wait after so many attempts in a row: doubling, capped, and spread by ``dice`` in [0, 1)."""
    return backoff.pause(attempts, dice)
