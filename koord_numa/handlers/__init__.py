"""The only package that uses Kopf: a table of triggers with one-line bodies."""

import sys
from typing import Final

CLIENTS: Final = ("kubernetes", "kubernetes_asyncio", "pykube")
"""Client libraries whose objects and logins Kopf accepts."""


def prepare_kopf() -> None:
    """
    Import Kopf without the client libraries that are installed, and with a default registry without logins.

    ``koord-numa run`` calls it before it imports ``triggers``. It needs no client library, and each takes half a second
    to import. Under ``kopf run``, Kopf is as usual.
    """
    absent = [name for name in CLIENTS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: imports raise ModuleNotFoundError
    try:
        import kopf  # noqa: PLC0415  (only within the block)
    finally:
        for name in absent:
            del sys.modules[name]
    kopf.set_default_registry(kopf.OperatorRegistry())
