"""Random faults of every kind that the embedded API server can suffer, from a seed; each is there for a moment, then over."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault

REFUSALS: Final = (400, 401, 403, 409, 410, 429, 500, 503, 504)
"""All that a real server answers to a right request now and then. Not 404: it is the truth about an object."""

TARGETS: Final = (
    ("create", "pods", "binding"),
    ("create", "pods", "binding"),
    ("get", "pods", ""),
    ("list", "*", "*"),
    ("watch", "*", "*"),
    ("get,update", "leases", ""),
    ("create,patch", "events", "*"),
    ("patch", "pods", "status"),
    ("*", "*", "*"),
)
"""Verb, resource and subresource of the requests that a fault is for; binds suffer most."""

PASSING: Final = (Effect.ERROR, Effect.DELAY, Effect.DROP, Effect.LOSE_ANSWER, Effect.SLOW_ANSWER)
WATCHES: Final = (Effect.SLOW_WATCH, Effect.SILENT_WATCH, Effect.EXPIRE_WATCH, Effect.CUT_WATCH)

LONGEST: Final = 0.4
"""Seconds that a fault lasts at most."""

LATEST_RETRY: Final = 1
"""Seconds that a server asks to wait for."""


@dataclass(slots=True)
class Storm:
    """``hits`` is how often something was done to a request or a watch."""

    server: ApiServer
    dice: Random
    hits: int = 0
    targets: Sequence[tuple[str, str, str]] = TARGETS
    kinds: set[Effect] = field(default_factory=set)

    async def inject(self, wanted: int) -> None:
        """Inject faults, a few at a time, until so many have struck."""
        while self.hits < wanted:
            with self._struck(self.dice.randint(1, 4)):
                await asyncio.sleep(self.dice.uniform(0.05, LONGEST))
            if self.dice.random() < 0.1:
                self.server.compact()
            await asyncio.sleep(self.dice.uniform(0.0, 0.1))

    @contextmanager
    def _struck(self, count: int) -> Iterator[None]:
        numbers = {self.server.faults.add(fault): fault for fault in (self._fault() for _ in range(count))}
        try:
            yield
        finally:
            for number, fault in numbers.items():
                hits = self.server.faults.hits(number) or int(fault.effect is Effect.OUTAGE)
                self.hits += hits
                if hits:
                    self.kinds.add(fault.effect)
                self.server.faults.remove(number)

    def _fault(self) -> Fault:
        effect = self.dice.choice(
            (*PASSING, *PASSING, *WATCHES, *((Effect.OUTAGE,) if self.dice.random() < 0.2 else ()))
        )
        verb, resource, subresource = self.dice.choice(self.targets) if effect in PASSING else ("*", "*", "*")
        status = self.dice.choice(REFUSALS)
        return Fault(
            effect=effect,
            verb=verb,
            resource=resource,
            subresource=subresource,
            status=status,
            retry_after=LATEST_RETRY if status == 429 and self.dice.random() < 0.3 else 0,
            seconds=self.dice.uniform(0.01, LONGEST),
            probability=self.dice.uniform(0.3, 1.0),
            count=self.dice.randint(1, 6) if effect is not Effect.OUTAGE else None,
            seed=self.dice.randrange(1 << 30),
        )
