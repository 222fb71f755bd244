"""Characters to tokens, as the lexical part of the CEL grammar (cel-spec, langdef.md)."""

import re
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cel.errors import CompileError
from koord_numa.core.cel.values.values import Uint

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
    """``kind`` is ``name``, ``literal``, ``op`` or ``end``; a literal carries its value."""

    kind: str
    text: str
    position: int
    value: object = None


def tokenize(source: str) -> list[Token]:
    """All tokens of the expression, the last of kind ``end``. Raises ``CompileError`` at a character that begins none."""
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
    # 2**63 itself is let through here: the parser accepts it behind a minus sign only.
    value = int(match["int"], 0) if match["int"][:2] == "0x" else int(match["int"])
    if match["unsigned"]:
        if value >= _UINT_MAX:
            raise CompileError("invalid uint literal", position)
        return Uint(value)
    if value > _INT_MAX:
        raise CompileError("invalid int literal", position)
    return value


def _string(text: str, position: int) -> str | bytes:
    # The quote that comes first begins the literal; before it there is only the prefix.
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
        # Surrogates are no characters, and UTF-8 cannot hold them.
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CompileError("Syntax error: invalid unicode code point", position)
        return chr(code)
    character = _ESCAPES.get(match["char"] or "")
    if character is None:
        raise CompileError(f"Syntax error: unable to unescape {match.group()!r}", position)
    return character


def _unescape_bytes(body: str, position: int) -> bytes:
    """In a bytes literal ``\\x`` and octal escapes are bytes, not characters."""
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
