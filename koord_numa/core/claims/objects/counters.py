"""Counters of partitionable devices: one account for each pool, which partitions draw from."""

from koord_numa.core.claims.objects.pools import Candidate, Pool
from koord_numa.core.claims.search.inventory import PoolId
from koord_numa.core.claims.search.usage import DeviceUsage

Account = dict[str, dict[str, int]]


class CounterAccounts:
    """
    What is left of the counters of every pool, in 10^-9 units.

    Upstream keeps accounts by pool name, so that two drivers with a pool of one name share them; here they go by driver and name.
    """

    def __init__(self, usage: DeviceUsage) -> None:
        self._usage = usage
        self._left: dict[PoolId, Account] = {}

    def draw(self, candidate: Candidate) -> bool:
        """Take what the device consumes; nothing when any counter of the pool would be negative."""
        account = self._account(candidate.pool)
        self._change(account, candidate, -1)
        # All counters of the pool are looked at: upstream refuses while any is overdrawn, by whichever device.
        if all(value >= 0 for amounts in account.values() for value in amounts.values()):
            return True
        self._change(account, candidate, 1)
        return False

    def give_back(self, candidate: Candidate) -> None:
        """Undo a draw."""
        self._change(self._account(candidate.pool), candidate, 1)

    def _account(self, pool: Pool) -> Account:
        account = self._left.get(pool.id)
        if account is None:
            account = {name: dict(amounts) for name, amounts in pool.counters.items()}
            # Every device of the pool that is in use, on whatever node: partitions draw from common counters.
            for device in pool.consumers:
                if self._usage.in_use(device.id) or self._usage.shared_by_some(device.id):
                    for name, amounts in device.consumes:
                        for counter, amount in amounts.items():
                            # A counter that is not published any more is a contradiction of the pool and found there.
                            if counter in account.get(name, {}):
                                account[name][counter] -= amount
            self._left[pool.id] = account
        return account

    @staticmethod
    def _change(account: Account, candidate: Candidate, sign: int) -> None:
        for name, amounts in candidate.device.consumes:
            for counter, amount in amounts.items():
                account[name][counter] += sign * amount
