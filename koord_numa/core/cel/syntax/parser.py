"""Tokens to a syntax tree by recursive descent, one method a level of precedence (cel-spec, langdef.md)."""

from typing import Final

from koord_numa.core.cel.errors import CompileError
from koord_numa.core.cel.syntax.lexer import Token, tokenize
from koord_numa.core.cel.syntax.macros import GLOBAL_MACROS, MEMBER_MACROS, NAMESPACE_MACROS
from koord_numa.core.cel.syntax.syntax import Call, Expr, Ident, Index, ListLiteral, Literal, MapLiteral, Select

MAX_LENGTH: Final = 10 * 1024
"""Characters of an expression, as resource/v1 CELSelectorExpressionMaxLength."""
MAX_DEPTH: Final = 60
"""Nested parentheses, calls and operators; Go's parser stops at 250 levels of its own grammar rules."""

_RELATIONS: Final = frozenset({"<", "<=", ">=", ">", "==", "!=", "in"})
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_RESERVED: Final = frozenset(_CONSTANTS) | {
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "in", "let", "loop", "namespace", "package",
    "return", "var", "void", "while",
}  # fmt: skip


def parse(source: str) -> Expr:
    """The tree of an expression. Raises ``CompileError``."""
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
        """Take this very token, or raise."""
        token = self._accept(text)
        if token is None:
            raise CompileError(
                f"Syntax error: mismatched input {self._next.text!r} expecting {text!r}", self._next.position
            )
        return token

    def expression(self) -> Expr:
        """``a || b ? c : d``."""
        self._depth += 1
        # Before the descent: Python's stack must not be the limit.
        if self._depth > MAX_DEPTH:
            raise CompileError(f"expressions are nested deeper than {MAX_DEPTH} levels", self._next.position)
        condition = self._logical("||")
        if mark := self._accept("?"):
            chosen = self._logical("||")
            self.expect(":")
            # The other branch is an expression again, so that ``?:`` is right-associative.
            condition = Call(mark.position, "_?:_", (condition, chosen, self.expression()))
        self._depth -= 1
        return condition

    def _logical(self, operator: str) -> Expr:
        """A chain of one operator is one call with many operands: deep left recursion would add nothing."""
        first = self._logical("&&") if operator == "||" else self._relation()
        operands = [first]
        position = self._next.position
        while self._accept(operator):
            operands.append(self._logical("&&") if operator == "||" else self._relation())
        return first if len(operands) == 1 else Call(position, f"_{operator}_", tuple(operands))

    def _relation(self) -> Expr:
        left = self._sum()
        # Literals may have the text of an operator, such as the string "in".
        while self._next.kind != "literal" and self._next.text in _RELATIONS:
            mark = self._take()
            name = "@in" if mark.text == "in" else f"_{mark.text}_"
            left = Call(mark.position, name, (left, self._sum()))
        return left

    def _sum(self) -> Expr:
        left = self._product()
        while mark := self._accept("+", "-"):
            left = Call(mark.position, f"_{mark.text}_", (left, self._product()))
        return left

    def _product(self) -> Expr:
        left = self._unary()
        while mark := self._accept("*", "/", "%"):
            left = Call(mark.position, f"_{mark.text}_", (left, self._unary()))
        return left

    def _unary(self) -> Expr:
        if marks := self._run("!"):
            operand = self._member()
            # Two signs cancel out, so that a chain of them is one operation or none.
            return operand if len(marks) % 2 == 0 else Call(marks[0].position, "!_", (operand,))
        if self._next.text == "-" and self._next.kind == "op":
            following = self._tokens[self._at + 1]
            # A minus before a number is part of the literal: only so is -2**63 an int.
            if following.kind == "literal" and type(following.value) in (int, float):
                return self._members(self._negative_literal())
            marks = self._run("-")
            operand = self._member()
            return operand if len(marks) % 2 == 0 else Call(marks[0].position, "-_", (operand,))
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
            # A method call, unless the dot is optional, which selects fields only.
            if mark.text == "." and self._accept("("):
                operand = self._member_call(operand, name)
            else:
                operand = Select(mark.position, operand, name.text, optional=mark.text == ".?")
        return operand

    def _member_call(self, target: Expr, name: Token) -> Expr:
        args = self._arguments(")")
        # Macros are recognised by name and number of arguments, as in cel-go's parser.
        if isinstance(target, Ident) and (macro := NAMESPACE_MACROS.get((f"{target.name}.{name.text}", len(args)))):
            return macro(name.position, target, args)
        if macro := MEMBER_MACROS.get((name.text, len(args))):
            return macro(name.position, target, args)
        return Call(name.position, name.text, args, target)

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
            # The lexer lets 2**63 pass for the sake of its negation.
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
        self._accept(".")  # a leading dot only says that the name is absolute
        return self._name_or_call()

    def _name_or_call(self) -> Expr:
        name = self._name()
        if not self._accept("("):
            return Ident(name.position, name.text)
        args = self._arguments(")")
        if macro := GLOBAL_MACROS.get((name.text, len(args))):
            return macro(name.position, None, args)
        return Call(name.position, name.text, args)

    def _name(self, selector: bool = False) -> Token:
        token = self._next
        # After a dot only the constants and ``in`` are reserved: fields may be called ``namespace``.
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
