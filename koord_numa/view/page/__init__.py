"""
The page: one HTML document with inline style and script and no external resources.

The served page reads ``/api/v1`` and receives live updates. A page in a file contains its documents and works offline.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import orjson

from koord_numa.core.value_objects import ValueObject
from koord_numa.view import Document

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


class Embedded(ValueObject):
    """A document inside the page, identified by its API path."""

    path: str
    json: "Markup"


def served_page(nonce: str, cluster: Document) -> str:
    """Return the page that reads the API, with the first nodes. ``nonce`` must match the Content-Security-Policy header."""
    documents = tuple(_embedded([("/api/v1/cluster", cluster)]))
    return _template().render(source="api", nonce=nonce, documents=documents)


def written_page(documents: Mapping[str, Document]) -> str:
    """Return a self-contained page with the given documents, by API path."""
    return _template().render(source="file", nonce="", documents=tuple(_embedded(documents.items())))


def _embedded(documents: Iterable[tuple[str, Document]]) -> Iterable[Embedded]:
    from markupsafe import Markup

    for path, document in documents:
        # "<" occurs in JSON only within strings. It is escaped, so that no text can end the script element.
        text = orjson.dumps(document).decode().replace("<", "\\u003c")
        yield Embedded(path, Markup(text))  # noqa: S704  (escaped above)


@cache
def _template() -> "Template":
    # On use: the scheduler starts without it, and most commands write no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("koord_numa.view.page", "static")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html")
