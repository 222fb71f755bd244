# noqa: INP001  (MkDocs loads it by its path)
"""
What the site needs besides the pages: links to files of the repository that are no pages become their paths.

Such files are part of a checkout, which is where a reader of the page on the repository's server finds them by the same link.
"""

import re
from typing import Any, Final

OUTSIDE: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links that leave the documentation."""
    depth = str(page.file.src_uri).count("/")

    def replaced(link: re.Match[str]) -> str:
        if link[2].count("../") <= depth:
            return link[0]
        return f"{link[1]} (`{link[2].replace('../', '')}`)"

    return OUTSIDE.sub(replaced, markdown)
