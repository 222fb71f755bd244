"""Contrast and order of the page's colors, computed from its style sheet by the formulas of WCAG and CIE."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import pytest

from koord_numa.view.page import served_page
from tests.tables import each_row

STYLE: Final = served_page("n", {}).partition("<style")[2].partition("</style>")[0]
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
)
PODS: Final = re.findall(r"\.(p\d+) \{ --pod: (#\w{6}); --pod-fg: (#\w{6}); \}", STYLE)

TEXTS: Final = [
    *[(text, ground) for text in ("fg", "muted", "accent", "bad", "ok") for ground in ("bg", "panel")],
    ("fg", "free"),
    ("fg", "reserved"),
    ("on-accent", "accent"),
    ("on-mark", "mark"),
    *[(f"t{at}", f"l{at}") for at in range(6)],
]
"""Texts and their backgrounds: at least 4.5 (WCAG 2.2, 1.4.3, level AA)."""

MARKS: Final = [
    *[("muted", ground) for ground in ("bg", "panel", "free")],
    *[("accent", ground) for ground in ("bg", "panel", "l0")],
    ("needed", "l0"),
]
"""Borders, bars and marks, and what they lie on: at least 3 (1.4.11)."""

# Linear light of a color as people see it without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
VISION: Final[Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def linear(color: str) -> tuple[float, ...]:
    values = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return tuple(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)


def luminance(color: str, vision: str = "all cones") -> float:
    seen = [sum(a * b for a, b in zip(row, linear(color), strict=True)) for row in VISION[vision]]
    return sum(a * min(1.0, max(0.0, b)) for a, b in zip((0.2126, 0.7152, 0.0722), seen, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(theme: Mapping[str, str]) -> None:
    low = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in TEXTS}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
    marks = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in MARKS}
    assert {pair: ratio for pair, ratio in marks.items() if ratio < 3} == {}


def test_contrast_of_cpu_numbers_on_pod_colors() -> None:
    assert [name for name, _, _ in PODS] == [f"p{at}" for at in range(21)]
    assert len({color for _, color, _ in PODS}) == 21
    assert [name for name, color, text in PODS if contrast(color, text) < 4.5] == []


@each_row("vision", VISION)
@each_row(("theme", "sign"), [(LIGHT, -1), (DARK, 1)], ids=["light", "dark"])
def test_levels_differ_in_lightness(theme: Mapping[str, str], sign: int, vision: str) -> None:
    """More room is darker on a light page and lighter on a dark page, in steps that all people see."""
    levels = [116 * luminance(theme[f"l{at}"], vision) ** (1 / 3) - 16 for at in range(1, 6)]
    assert [sign * (after - before) >= 8 for before, after in pairwise(levels)] == [True] * 4
