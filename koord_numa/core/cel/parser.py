"""Parser from a CEL expression to a syntax tree (cel-spec, langdef.md). Every macro becomes a node of its own."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from koord_numa.core.cel.values import CompileError, Uint

_INT_MAX: Final = 2**63
_UINT_MAX: Final = 2**64

_TOKEN: Final = re.compile(
    r"""
    # The alternatives are tried in this order: strings before raw ones, floats before ints, and names last but operators.
    (?P<space>(?:\s+|//[^\n]*)+)
  | (?P<string>[rRbB]{0,2}(?:\"\"\"(?s:.*?)(?<!\\)\"\"\"|'''(?s:.*?)(?<!\\)'''|"(?:\\.|[^"\\\n\r])*"|'(?:\\.|[^'\\\n\r])*'))
  | (?P<raw>[rRbB]{1,2}(?:"[^"\n\r]*"|'[^'\n\r]*'))
  | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>0x[0-9a-fA-F]+|\d+)(?P<unsigned>[uU])?
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<op>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|X(?P<X>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-3][0-7]{2})|(?P<char>.)|$)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token. ``kind`` is ``name``, ``literal``, ``op`` or ``end``. A literal carries its value."""

    kind: str
    text: str
    position: int
    value: object = None


def tokenize(source: str) -> list[Token]:
    """
    Split the expression into tokens. The last token has the kind ``end``.

    Raises ``CompileError`` at a character that starts no token.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise CompileError(
                f"Syntax error: token recognition error at: {source[position : position + 12]!r}", position
            )
        if match.lastgroup != "space":
            tokens.append(_token(match, position))
        position = match.end()
    tokens.append(Token("end", "<EOF>", len(source)))
    return tokens


def _token(match: re.Match[str], position: int) -> Token:
    text = match.group()
    if match["name"]:
        return Token("name", text, position)
    if match["op"]:
        return Token("op", text, position)
    if match["float"]:
        return Token("literal", text, position, float(text))
    if match["int"]:
        return Token("literal", text, position, _integer(match, position))
    return Token("literal", text, position, _string(text, position))


def _integer(match: re.Match[str], position: int) -> int:
    # 2**63 itself passes the lexer, because it is valid after a minus sign. The parser rejects it elsewhere.
    value = int(match["int"], 0) if match["int"][:2] == "0x" else int(match["int"])
    if match["unsigned"]:
        if value >= _UINT_MAX:
            raise CompileError("invalid uint literal", position)
        return Uint(value)
    if value > _INT_MAX:
        raise CompileError("invalid int literal", position)
    return value


def _string(text: str, position: int) -> str | bytes:
    # The first quote starts the literal. Only the prefix precedes it.
    start = min(index for index in (text.find('"'), text.find("'")) if index >= 0)
    prefix, body = text[:start].lower(), text[start:]
    quote = 3 if body[:3] in ('"""', "'''") else 1
    body = body[quote:-quote]
    binary = "b" in prefix
    if "r" in prefix:
        return body.encode() if binary else body
    return _unescape_bytes(body, position) if binary else _ESCAPE.sub(lambda it: _character(it, position), body)


def _character(match: re.Match[str], position: int) -> str:
    if match["octal"]:
        return chr(int(match["octal"], 8))
    digits = match["x"] or match["X"] or match["u"] or match["U"]
    if digits:
        code = int(digits, 16)
        # Surrogates are not characters, and UTF-8 cannot encode them.
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CompileError("Syntax error: invalid unicode code point", position)
        return chr(code)
    character = _ESCAPES.get(match["char"] or "")
    if character is None:
        raise CompileError(f"Syntax error: unable to unescape {match.group()!r}", position)
    return character


def _unescape_bytes(body: str, position: int) -> bytes:
    r"""Decode escapes of a bytes literal, where ``\\x`` and octal escapes are bytes instead of characters."""
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(body):
        parts.append(body[at : match.start()].encode())
        digits = match["x"] or match["X"]
        if digits or match["octal"]:
            parts.append(bytes([int(digits, 16) if digits else int(match["octal"], 8)]))
        elif match["u"] or match["U"]:
            raise CompileError("Syntax error: unicode escape in a bytes literal", position)
        else:
            parts.append(_character(match, position).encode())
        at = match.end()
    parts.append(body[at:].encode())
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: bool, int, ``Uint``, float, str, bytes or None."""

    position: int
    value: object


@dataclass(frozen=True, slots=True)
class Ident:
    """A variable or the name of a type."""

    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """
    The selection ``operand.field``. ``optional`` marks ``operand.?field`` and ``test`` marks ``has(operand.field)``.
    """

    position: int
    operand: "Expr"
    field: str
    optional: bool = False
    test: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """The index expression ``operand[key]``. ``optional`` marks ``operand[?key]``."""

    position: int
    operand: "Expr"
    key: "Expr"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CallExpression:
    """A call of a function or operator. ``target`` is the receiver of a member call."""

    position: int
    function: str
    args: tuple["Expr", ...]
    target: "Expr | None" = None


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """The list ``[a, ?b]``. Elements at ``optional`` positions are left out when they hold no value."""

    position: int
    elements: tuple["Expr", ...]
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """The map ``{k: v, ?k: v}`` as tuples of key, value, and whether the entry is optional."""

    position: int
    entries: tuple[tuple["Expr", "Expr", bool], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """
    A comprehension macro over a list or map.

    ``kind`` is the name of the macro. ``names`` holds one variable, or two: index and element of a list, key and value
    of a map. ``condition`` is the filter (``map``, ``transformList`` …) or the predicate. ``result`` computes the new
    element.
    """

    position: int
    kind: str
    range: "Expr"
    names: tuple[str, ...]
    condition: "Expr | None"
    result: "Expr | None"


@dataclass(frozen=True, slots=True)
class Bind:
    """The macro ``cel.bind(name, value, body)``."""

    position: int
    name: str
    value: "Expr"
    body: "Expr"


@dataclass(frozen=True, slots=True)
class OptionalMap:
    """The macro ``target.optMap(name, body)``, or ``optFlatMap`` when ``flat``."""

    position: int
    target: "Expr"
    name: str
    body: "Expr"
    flat: bool


Expr = Literal | Ident | Select | Index | CallExpression | ListLiteral | MapLiteral | Loop | Bind | OptionalMap


Macro = Callable[[int, Expr | None, tuple[Expr, ...]], Expr]


def _variable(node: Expr) -> str:
    if not isinstance(node, Ident):
        raise CompileError("argument must be a simple name", node.position)
    return node.name


def _has(position: int, _: Expr | None, args: tuple[Expr, ...]) -> Expr:
    node = args[0]
    if not isinstance(node, Select) or node.optional:
        raise CompileError("invalid argument to has() macro", node.position)
    return Select(position, node.operand, node.field, test=True)


def _predicate(kind: str, position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    """Build ``range.all(x, p)`` or ``range.all(i, x, p)``."""
    assert target is not None  # noqa: S101  (a member macro)
    return Loop(position, kind, target, _names(args[:-1]), args[-1], None)


def _transform(kind: str, variables: int, position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    """Build ``range.map(x, [filter,] result)``."""
    assert target is not None  # noqa: S101  (a member macro)
    condition = args[variables] if len(args) == variables + 2 else None
    return Loop(position, kind, target, _names(args[:variables]), condition, args[-1])


def _names(nodes: tuple[Expr, ...]) -> tuple[str, ...]:
    names = tuple(_variable(node) for node in nodes)
    if len(set(names)) != len(names):
        raise CompileError("the two variables of a comprehension must differ", nodes[0].position)
    return names


def _bind(position: int, _: Expr | None, args: tuple[Expr, ...]) -> Expr:
    return Bind(position, _variable(args[0]), args[1], args[2])


def _optional_map(flat: bool, position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    assert target is not None  # noqa: S101  (a member macro)
    return OptionalMap(position, target, _variable(args[0]), args[1], flat)


def _sort_by(position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    assert target is not None  # noqa: S101  (a member macro)
    return Loop(position, "sortBy", target, _names(args[:1]), None, args[1])


GLOBAL_MACROS: Final[Mapping[tuple[str, int], Macro]] = {("has", 1): _has}
NAMESPACE_MACROS: Final[Mapping[tuple[str, int], Macro]] = {("cel.bind", 3): _bind}
MEMBER_MACROS: Final[Mapping[tuple[str, int], Macro]] = {
    ("all", 2): partial(_predicate, "all"),
    ("exists", 2): partial(_predicate, "exists"),
    ("exists_one", 2): partial(_predicate, "exists_one"),
    ("existsOne", 2): partial(_predicate, "exists_one"),
    ("filter", 2): partial(_predicate, "filter"),
    ("map", 2): partial(_transform, "map", 1),
    ("map", 3): partial(_transform, "map", 1),
    # Two-variable comprehensions (cel-go ext.TwoVarComprehensions).
    ("all", 3): partial(_predicate, "all"),
    ("exists", 3): partial(_predicate, "exists"),
    ("existsOne", 3): partial(_predicate, "exists_one"),
    ("exists_one", 3): partial(_predicate, "exists_one"),
    ("transformList", 3): partial(_transform, "map", 2),
    ("transformList", 4): partial(_transform, "map", 2),
    ("transformMap", 3): partial(_transform, "transformMap", 2),
    ("transformMap", 4): partial(_transform, "transformMap", 2),
    ("transformMapEntry", 3): partial(_transform, "transformMapEntry", 2),
    ("transformMapEntry", 4): partial(_transform, "transformMapEntry", 2),
    ("optMap", 2): partial(_optional_map, False),
    ("optFlatMap", 2): partial(_optional_map, True),
    ("sortBy", 2): _sort_by,
}
"""Member macros, by name and number of arguments."""


MAX_LENGTH: Final = 10 * 1024
"""Maximum length of an expression in characters, as resource/v1 CELSelectorExpressionMaxLength."""
MAX_DEPTH: Final = 60
"""Maximum nesting of parentheses, calls and operators. Go's parser stops at 250 levels of its own grammar rules."""

_RELATIONS: Final = frozenset({"<", "<=", ">=", ">", "==", "!=", "in"})
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_RESERVED: Final = frozenset(_CONSTANTS) | {
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "in", "let", "loop", "namespace", "package",
    "return", "var", "void", "while",
}  # fmt: skip


def parse(source: str) -> Expr:
    """Parse an expression. Raises ``CompileError``."""
    if len(source) > MAX_LENGTH:
        raise CompileError(f"the expression has {len(source)} characters, at most {MAX_LENGTH} are allowed")
    parser = _Parser(tokenize(source))
    tree = parser.expression()
    parser.expect("<EOF>")
    return tree


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, *texts: str) -> Token | None:
        token = self._next
        if token.kind != "literal" and token.text in texts:
            return self._take()
        return None

    def expect(self, text: str) -> Token:
        """Consume the given token. Raises ``CompileError`` for any other token."""
        token = self._accept(text)
        if token is None:
            raise CompileError(
                f"Syntax error: mismatched input {self._next.text!r} expecting {text!r}", self._next.position
            )
        return token

    def expression(self) -> Expr:
        """Parse ``a || b ? c : d``."""
        self._depth += 1
        # Checked before the descent, so that Python's stack is not the limit.
        if self._depth > MAX_DEPTH:
            raise CompileError(f"expressions are nested deeper than {MAX_DEPTH} levels", self._next.position)
        condition = self._logical("||")
        if mark := self._accept("?"):
            chosen = self._logical("||")
            self.expect(":")
            # The last branch is an expression, so ``?:`` is right-associative.
            condition = CallExpression(mark.position, "_?:_", (condition, chosen, self.expression()))
        self._depth -= 1
        return condition

    def _logical(self, operator: str) -> Expr:
        """Parse a chain of one operator into one call with many operands, which avoids deep left recursion."""
        first = self._logical("&&") if operator == "||" else self._relation()
        operands = [first]
        position = self._next.position
        while self._accept(operator):
            operands.append(self._logical("&&") if operator == "||" else self._relation())
        return first if len(operands) == 1 else CallExpression(position, f"_{operator}_", tuple(operands))

    def _relation(self) -> Expr:
        left = self._sum()
        # A literal may have the text of an operator, such as the string "in".
        while self._next.kind != "literal" and self._next.text in _RELATIONS:
            mark = self._take()
            name = "@in" if mark.text == "in" else f"_{mark.text}_"
            left = CallExpression(mark.position, name, (left, self._sum()))
        return left

    def _sum(self) -> Expr:
        left = self._product()
        while mark := self._accept("+", "-"):
            left = CallExpression(mark.position, f"_{mark.text}_", (left, self._product()))
        return left

    def _product(self) -> Expr:
        left = self._unary()
        while mark := self._accept("*", "/", "%"):
            left = CallExpression(mark.position, f"_{mark.text}_", (left, self._unary()))
        return left

    def _unary(self) -> Expr:
        if marks := self._run("!"):
            operand = self._member()
            # Two signs cancel out, so a chain of signs is one operation or none.
            return operand if len(marks) % 2 == 0 else CallExpression(marks[0].position, "!_", (operand,))
        if self._next.text == "-" and self._next.kind == "op":
            following = self._tokens[self._at + 1]
            # A minus before a number is part of the literal. Otherwise -2**63 would not be an int.
            if following.kind == "literal" and type(following.value) in (int, float):
                return self._members(self._negative_literal())
            marks = self._run("-")
            operand = self._member()
            return operand if len(marks) % 2 == 0 else CallExpression(marks[0].position, "-_", (operand,))
        return self._member()

    def _run(self, text: str) -> list[Token]:
        marks: list[Token] = []
        while mark := self._accept(text):
            marks.append(mark)
        return marks

    def _negative_literal(self) -> Expr:
        mark = self._take()
        value = self._take().value
        assert isinstance(value, int | float)  # noqa: S101  (the caller looked)
        return Literal(mark.position, -value)

    def _member(self) -> Expr:
        return self._members(self._primary())

    def _members(self, operand: Expr) -> Expr:
        while mark := self._accept(".", ".?", "[", "[?"):
            if mark.text[0] == "[":
                key = self.expression()
                self.expect("]")
                operand = Index(mark.position, operand, key, optional=mark.text == "[?")
                continue
            name = self._name(selector=True)
            # A method call. The optional dot selects fields only.
            if mark.text == "." and self._accept("("):
                operand = self._member_call(operand, name)
            else:
                operand = Select(mark.position, operand, name.text, optional=mark.text == ".?")
        return operand

    def _member_call(self, target: Expr, name: Token) -> Expr:
        args = self._arguments(")")
        # As in cel-go's parser, macros are recognized by name and number of arguments.
        if isinstance(target, Ident) and (macro := NAMESPACE_MACROS.get((f"{target.name}.{name.text}", len(args)))):
            return macro(name.position, target, args)
        if macro := MEMBER_MACROS.get((name.text, len(args))):
            return macro(name.position, target, args)
        return CallExpression(name.position, name.text, args, target)

    def _arguments(self, end: str) -> tuple[Expr, ...]:
        args: list[Expr] = []
        if self._accept(end):
            return ()
        while True:
            args.append(self.expression())
            if self._accept(end):
                return tuple(args)
            self.expect(",")

    def _primary(self) -> Expr:
        token = self._next
        if token.kind == "literal":
            self._take()
            # The lexer accepts 2**63 only for its negation.
            if type(token.value) is int and token.value == 2**63:
                raise CompileError("invalid int literal", token.position)
            return Literal(token.position, token.value)
        if token.text in _CONSTANTS:
            self._take()
            return Literal(token.position, _CONSTANTS[token.text])
        if self._accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if self._accept("["):
            return self._list(token)
        if self._accept("[?"):
            return self._list(token, first_optional=True)
        if self._accept("{"):
            return self._map(token)
        self._accept(".")  # a leading dot marks an absolute name and has no effect here
        name = self._name()
        if not self._accept("("):
            return Ident(name.position, name.text)
        args = self._arguments(")")
        if macro := GLOBAL_MACROS.get((name.text, len(args))):
            return macro(name.position, None, args)
        return CallExpression(name.position, name.text, args)

    def _name(self, selector: bool = False) -> Token:
        token = self._next
        # After a dot only the constants and ``in`` are reserved: a field may have the name ``namespace``.
        reserved = token.text in (("true", "false", "null", "in") if selector else _RESERVED)
        if token.kind != "name" or reserved:
            raise CompileError(f"Syntax error: mismatched input {token.text!r} expecting a name", token.position)
        return self._take()

    def _list(self, start: Token, first_optional: bool = False) -> Expr:
        elements: list[Expr] = []
        optional: set[int] = set()
        waiting = first_optional
        while not self._accept("]"):
            if waiting or self._accept("?"):
                optional.add(len(elements))
            waiting = False
            elements.append(self.expression())
            if self._accept("]"):
                break
            self.expect(",")
        return ListLiteral(start.position, tuple(elements), frozenset(optional))

    def _map(self, start: Token) -> Expr:
        entries: list[tuple[Expr, Expr, bool]] = []
        while not self._accept("}"):
            optional = self._accept("?") is not None
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression(), optional))
            if self._accept("}"):
                break
            self.expect(",")
        return MapLiteral(start.position, tuple(entries))
