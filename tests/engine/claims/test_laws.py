"""Laws for any life of a cluster with claims and changing taint rules (``lives.py``)."""

from tests.engine.claims.lives import live
from tests.tables import each_row


@each_row("seed", range(10))
def test_nothing_is_given_twice_while_rules_change(seed: int) -> None:
    life = live(seed, steps=40)
    assert life.placed
