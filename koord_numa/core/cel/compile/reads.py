"""What an expression looks at, found in its tree: answers can then be shared by devices that do not differ in it."""

from dataclasses import dataclass

from koord_numa.core.cel.syntax.syntax import (
    Bind,
    Call,
    Expr,
    Ident,
    Index,
    ListLiteral,
    Literal,
    Loop,
    MapLiteral,
    OptionalMap,
    Select,
)


@dataclass(frozen=True, slots=True)
class Reads:
    """
    ``names`` are attributes and capacities as (domain, name). ``everything`` says that the expression looks at them in a way that
    cannot be told from its text, such as a loop over all of them.
    """

    names: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    @property
    def driver_only(self) -> bool:
        """Does the answer depend on the driver's name alone?"""
        return not self.names and not self.everything


def reads_of(tree: Expr) -> Reads:
    """What the expression reads besides ``device.driver``."""
    names: set[tuple[str, str]] = set()
    return Reads(frozenset(names), True) if _opaque(tree, names) else Reads(frozenset(names))


def _opaque(node: Expr, names: set[tuple[str, str]]) -> bool:
    """Collect the names that are read below the node; True when something else is read."""
    if isinstance(node, Ident):
        # The device as a whole was used in a way that no path explains.
        return node.name == "device"
    path = _path(node)
    if path is not None:
        if len(path) == 2 and path[0] in ("attributes", "capacity"):
            # ``device.attributes["d"]`` as a map: any of its names may be read.
            return True
        if len(path) >= 3:
            names.add((path[1], path[2]))
        # A field of the device itself, such as ``allowMultipleAllocations``, counts as a name without a domain.
        elif path != ["driver"]:
            names.add(("", path[0]))
        return False
    return any(_opaque(child, names) for child in children(node))


def _path(node: Expr) -> list[str] | None:
    """``device.attributes["d"].x`` as ``[attributes, d, x]``; None for what is no such chain of constant names."""
    steps: list[str] = []
    while not isinstance(node, Ident):
        if isinstance(node, Select):
            steps.append(node.field)
            node = node.operand
        elif isinstance(node, Index) and isinstance(node.key, Literal) and isinstance(node.key.value, str):
            steps.append(node.key.value)
            node = node.operand
        else:
            return None
    # ``device`` alone, or all attributes at once: no chain of constant names.
    if node.name != "device" or not steps or (len(steps) == 1 and steps[0] in ("attributes", "capacity")):
        return None
    return steps[::-1]


def children(node: Expr) -> tuple[Expr, ...]:
    """The parts of a node."""
    match node:
        case Select(operand=operand):
            return (operand,)
        case Index(operand=operand, key=key):
            return (operand, key)
        case Call(args=args, target=target):
            return args if target is None else (target, *args)
        case ListLiteral(elements=elements):
            return elements
        case MapLiteral(entries=entries):
            return tuple(part for key, value, _ in entries for part in (key, value))
        case Loop(range=items, condition=condition, result=result):
            return tuple(part for part in (items, condition, result) if part is not None)
        case Bind(value=value, body=body):
            return (value, body)
        case OptionalMap(target=target, body=body):
            return (target, body)
        case _:
            return ()
