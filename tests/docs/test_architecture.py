"""Every file that the architecture page names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_files_that_are_named_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", text)
    assert len(named) > 60
    missing = [name for name in named if not ((ROOT / "koord_numa" / name).exists() or (ROOT / name).exists())]
    assert missing == []
