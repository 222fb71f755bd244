"""Many more lives with claims and changing taint rules than other tests have: new ones each time, by ``--law-examples``."""

from random import SystemRandom

import pytest

from tests.engine.claims.lives import live

pytestmark = pytest.mark.chaos


def test_nothing_is_given_twice_while_rules_change(pytestconfig: pytest.Config) -> None:
    examples = int(pytestconfig.getoption("--law-examples"))
    first = SystemRandom().randrange(1 << 30)
    for seed in range(first, first + (examples if examples > 100 else examples // 5)):
        try:
            live(seed, steps=80)
        except Exception as error:
            raise AssertionError(f"life {seed} ends with {error!r}") from error
