"""
An arrangement that is being improved: it knows its own worth, and whether a change of a few seats would make it better.

Theory. A search asks thousands of times what happens when one, two or a few tenants sit elsewhere. Their own shares are subtracted
and added, and only when that looks promising the rest is counted: neighbours, free blocks, room. *Harm* is by how much pods would be
worse off than today, required policies broken, the largest block smaller and NUMA nodes overdrawn: an arrangement without harm
is one that the board allows, and less harm counts more than anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.rebind.layout import Arrangement, Figures, Friction, NodeLayout

Changes = Mapping[int, int]
"""New CPU bits by the index of the tenant."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Seats on a board, what is free beside them, and their worth. ``seat_harm`` is the share of ``harm`` of tenants seen alone."""

    board: NodeLayout
    seats: Arrangement
    free: int
    seat_harm: int
    harm: int
    figures: Figures
    friction: Friction

    @property
    def worth(self) -> tuple[int, Figures]:
        """Smaller is better."""
        return self.harm, self.figures

    def improved(self, changes: Changes) -> "Standing | None":
        """The standing after these changes if it is better than this one. Seats that change must fit what is then free."""
        board, figures = self.board, self.figures
        seats, free, taken = list(self.seats), self.free, 0
        seat_harm, crossings, splits, moves = self.seat_harm, figures.crossings, figures.split_cores, figures.moves
        concerns = False
        for index, bits in changes.items():
            old, new = board.seat(index, seats[index]), board.seat(index, bits)
            crossings += new.numa_nodes - old.numa_nodes
            splits += new.split_cores - old.split_cores
            seat_harm += new.harm - old.harm
            moves += (bits != board.now[index]) - (seats[index] != board.now[index])
            free |= seats[index]
            taken |= bits
            seats[index] = bits
            concerns = concerns or index in board.concerned
        if seat_harm > self.harm or (seat_harm == self.harm and (crossings, splits) > figures[:2]):
            return None
        friction = board.friction(seats) if concerns else self.friction
        free &= ~taken
        block, most = board.largest_block(free)
        made = Standing(
            board=board,
            seats=tuple(seats),
            free=free,
            seat_harm=seat_harm,
            harm=seat_harm + friction.harm + max(0, board.block_now - block) + board.overdrawn(free),
            figures=Figures(crossings, splits, friction.total, -block, -most, moves),
            friction=friction,
        )
        return made if made.worth < self.worth else None


def standing_of(board: NodeLayout, seats: Arrangement) -> Standing:
    """A whole arrangement counted from nothing. Sizes and CPUs per NUMA node must be as the tenants need them."""
    free, figures, friction = board.free(seats), board.figures(seats), board.friction(seats)
    seat_harm = sum(board.seat(index, bits).harm for index, bits in enumerate(seats))
    shrunk = max(0, board.block_now + figures.minus_block)
    harm = seat_harm + friction.harm + shrunk + board.overdrawn(free)
    return Standing(board, seats, free, seat_harm, harm, figures, friction)
