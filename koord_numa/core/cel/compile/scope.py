"""Names of comprehension variables to slots of the frame, decided while compiling."""

from koord_numa.core.cel.errors import CompileError


class Scope:
    """A chain of bindings. Every binding of an expression has a slot of its own, so inner ones may hide outer ones."""

    __slots__ = ("_counter", "_slots")

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._counter = [0]

    @property
    def size(self) -> int:
        """Slots given out so far, in all scopes of the expression."""
        return self._counter[0]

    def slot(self, name: str) -> int | None:
        """The slot of a variable; None for names that no macro bound."""
        return self._slots.get(name)

    def require(self, name: str) -> int:
        """The slot of a variable that is bound."""
        slot = self._slots.get(name)
        if slot is None:
            raise CompileError(f"undeclared reference to '{name}' (in container '')")
        return slot

    def bind(self, *names: str) -> "Scope":
        """A scope within this one, with further variables."""
        inner = Scope()
        # One counter for the whole expression: slots of inner scopes must not overlap with outer ones.
        inner._counter = self._counter
        inner._slots = {**self._slots, **{name: self._counter[0] + at for at, name in enumerate(names)}}
        self._counter[0] += len(names)
        return inner
