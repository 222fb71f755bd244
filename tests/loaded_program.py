"""All that ``koord-numa run`` imports, in its order, for the server that ``preloaded`` forks it from."""

from koord_numa.handlers import prepare_kopf

prepare_kopf()

import uvloop  # noqa: E402, F401  (Kopf is prepared before it is imported)

import koord_numa.cli.commands.run  # noqa: E402  (as above)
import koord_numa.cli.logs  # noqa: E402  (as above)
import koord_numa.operator  # noqa: E402, F401  (as above)
