"""Edit distance, for misspelled keys and words."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

NEAR: Final = 2
"""Largest edit distance of a misspelled key: two neighboring letters swapped, or two single mistakes."""

_LONGEST: Final = 128
"""Longer words are not compared: the cost is the product of the lengths."""


def plain(word: str) -> str:
    """Return the word in lower case without separators, with "policy" for "policies": ``qos-class`` and ``qosClass`` are equal."""
    return word.lower().replace("-", "").replace("_", "").replace(".", "").replace("policies", "policy")


def is_near(word: str, other: str, limit: int = NEAR) -> bool:
    """Return whether at most ``limit`` insertions, deletions and replacements of a character turn ``word`` into ``other``."""
    if abs(len(word) - len(other)) > limit or max(len(word), len(other)) > _LONGEST:
        return False
    row = list(range(len(other) + 1))
    for done, letter in enumerate(word, 1):
        before, row = row, [done]
        for place, wanted in enumerate(other, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != wanted)))
        if min(row) > limit:
            return False
    return row[-1] <= limit


def closest(word: str, words: Iterable[str]) -> str:
    """Return the word that was most probably meant. Empty if none is similar."""
    by_plain = {plain(known): known for known in words}
    found = get_close_matches(plain(word[:_LONGEST]), by_plain, n=1)
    return by_plain[found[0]] if found else ""


def meant(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean LSE?`` for a word that is spelled nearly like exactly one of the known words, else an empty text."""
    written = plain(word)
    limit = 1 if len(written) <= 4 else NEAR
    words = [other for other in known if other]
    found = [it for it in words if plain(it) == written] or [it for it in words if is_near(written, plain(it), limit)]
    return f"; did you mean {found[0]}?" if written and len(found) == 1 else ""
