"""
Sanitization for terminals and logs: texts of objects may contain characters that control a terminal or change the text
direction.
"""

import unicodedata
from functools import lru_cache
from typing import Final

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_KEPT: Final = frozenset("\n\t")
_HARMFUL: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""
Unicode categories: controls, format characters, unassigned and private characters, surrogates, line and paragraph
separators.
"""


@lru_cache(maxsize=4096)
def _is_harmful(character: str) -> bool:
    return unicodedata.category(character) in _HARMFUL and character not in _KEPT


def printable(text: str, *, one_line: bool = False) -> str:
    """Return the text with a replacement for every harmful character; with ``one_line`` for line feeds and tabs too."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(REPLACEMENT if _is_harmful(each) or (one_line and each in _KEPT) else each for each in text)
