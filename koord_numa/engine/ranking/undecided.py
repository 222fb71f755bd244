"""Decisions that have to go on later, because so many nodes were asked that others have their turn."""

from enum import Enum


class Undecided(Enum):
    """A decision that has to go on later."""

    UNDECIDED = "undecided"


class LimitReached(Exception):
    """So many nodes were asked that others have their turn."""
