"""
The comprehension macros at run time. Their costs are those of the folds that the macros expand to upstream: an accumulator read, a
condition and a step for every element (cel-go parser/macro.go, ext/comprehensions.go).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.core.cel.compile.frame import Frame
from koord_numa.core.cel.errors import NO_SUCH_OVERLOAD, EvaluationError
from koord_numa.core.cel.standard_library.lists import SORT_KEY, charge_sort
from koord_numa.core.cel.values.values import MapValue

Evaluate = Callable[[Frame], Any]


@dataclass(frozen=True, slots=True)
class Body:
    """What a loop runs over, the slots of its variables, and its parts."""

    items: Evaluate
    slots: tuple[int, ...]
    condition: Evaluate | None
    result: Evaluate | None

    def each(self, frame: Frame) -> Iterator[Any]:
        """Sets the variables for one element after the other; yields the map's key or the list's index."""
        items = self.items(frame)
        if not isinstance(items, tuple | MapValue):
            raise EvaluationError(NO_SUCH_OVERLOAD)
        single = len(self.slots) == 1
        pairs: Iterable[tuple[Any, Any]]
        if isinstance(items, tuple):
            pairs = enumerate(items)
        else:
            # A loop over the keys alone reads no value.
            pairs = zip(items, items, strict=True) if single else items.items()
        for key, value in pairs:
            # Before each element: a nested loop must not go on far beyond the limit.
            frame.charge(1)
            if single:
                frame.variables[self.slots[0]] = value
            else:
                frame.variables[self.slots[0]], frame.variables[self.slots[1]] = key, value
            yield key

    def holds(self, frame: Frame) -> bool:
        """The condition, which must be a bool."""
        if self.condition is None:
            return True
        value = self.condition(frame)
        if not isinstance(value, bool):
            raise EvaluationError(NO_SUCH_OVERLOAD)
        return value

    def make(self, frame: Frame) -> Any:
        """The result for the current element."""
        return self.result(frame) if self.result is not None else frame.variables[self.slots[0]]


def _quantifier(body: Body, decisive: bool, check: int) -> Evaluate:
    """``all`` and ``exists``: a decisive element decides, whatever error another one raised."""

    def evaluate(frame: Frame) -> bool:
        error: EvaluationError | None = None
        answer = not decisive
        for _ in body.each(frame):
            frame.cost += check + 1
            try:
                if body.holds(frame) is decisive:
                    # A decisive element makes errors of others irrelevant.
                    error, answer = None, decisive
                    frame.cost += check
                    break
            except EvaluationError as caught:
                error = error or caught
        frame.cost += 1
        if error is not None:
            raise error
        return answer

    return evaluate


def _all(body: Body) -> Evaluate:
    return _quantifier(body, decisive=False, check=2)


def _exists(body: Body) -> Evaluate:
    return _quantifier(body, decisive=True, check=3)


def _exists_one(body: Body) -> Evaluate:
    def evaluate(frame: Frame) -> bool:
        count = 0
        for _ in body.each(frame):
            if body.holds(frame):
                count += 1
                frame.cost += 2
        frame.cost += 2
        return count == 1

    return evaluate


def _list(body: Body) -> Evaluate:
    """``map``, ``filter`` and ``transformList``."""
    # ``filter`` has no result expression and reads the variable once more.
    plain = 1 if body.result is None else 0  # filter reads the variable itself

    def evaluate(frame: Frame) -> Any:
        made: list[Any] = []
        for _ in body.each(frame):
            if body.holds(frame):
                frame.cost += 12 + plain
                made.append(body.make(frame))
        frame.cost += 1
        return frame.admit(tuple(made))

    return evaluate


def _transform_map(body: Body) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        made: list[tuple[Any, Any]] = []
        for key in body.each(frame):
            if body.holds(frame):
                frame.cost += 3
                made.append((key, body.make(frame)))
        frame.cost += 1
        return frame.admit(MapValue(made))

    return evaluate


def _transform_entries(body: Body) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        made: list[tuple[Any, Any]] = []
        for _ in body.each(frame):
            if body.holds(frame):
                frame.cost += 2
                entries = body.make(frame)
                if not isinstance(entries, MapValue):
                    raise EvaluationError(NO_SUCH_OVERLOAD)
                frame.charge_nodes(len(made) + len(entries))
                made.extend(entries.items())
        frame.cost += 1
        result = MapValue(made)
        # A repeated key is an error, as cel-go's mutable map reports it.
        if len(result) != len(made):
            raise EvaluationError("insert failed: key already exists")
        return frame.admit(result)

    return evaluate


def _sort_by(body: Body) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        keyed = [(body.make(frame), frame.variables[body.slots[0]]) for _ in body.each(frame)]
        frame.cost += 11 * len(keyed) + 1
        charge_sort(frame, tuple(key for key, _ in keyed))
        # ``sorted`` is stable, so equal keys keep their order.
        ranked = sorted(keyed, key=lambda it: SORT_KEY(it[0]))
        return frame.admit(tuple(value for _, value in ranked))

    return evaluate


LOOPS: Final[Mapping[str, Callable[[Body], Evaluate]]] = {
    "all": _all,
    "exists": _exists,
    "exists_one": _exists_one,
    "filter": _list,
    "map": _list,
    "transformMap": _transform_map,
    "transformMapEntry": _transform_entries,
    "sortBy": _sort_by,
}
