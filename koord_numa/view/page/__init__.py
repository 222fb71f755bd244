"""
The page: one HTML document with its style and script inside, without any external resource.

Served, it reads ``/api/v1`` and follows it live. Written to a file, it carries the documents with it and works offline.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from koord_numa.view.documents import Document


@dataclass(frozen=True, slots=True)
class Embedded:
    """A document inside the page, found there by the path under which the API serves it."""

    path: str
    json: Markup


def served_page(nonce: str) -> str:
    """The page that reads the API; ``nonce`` is the one that the Content-Security-Policy header allows."""
    return _template().render(source="api", nonce=nonce, documents=())


def written_page(documents: Mapping[str, Document]) -> str:
    """A self-contained page that shows these documents, by API path."""
    return _template().render(source="file", nonce="", documents=tuple(_embedded(documents.items())))


def _embedded(documents: Iterable[tuple[str, Document]]) -> Iterable[Embedded]:
    for path, document in documents:
        # "<" never occurs in JSON outside of strings; escaped, no text of an object can end the script element.
        text = orjson.dumps(document).decode().replace("<", "\\u003c")
        yield Embedded(path, Markup(text))  # noqa: S704  (escaped above)


@cache
def _template() -> Template:
    loader = PackageLoader("koord_numa.view.page", "static")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html")
