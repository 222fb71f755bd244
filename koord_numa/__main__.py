"""``python -m koord_numa``: the command line where the console script is not on the PATH."""

from koord_numa.cli import main

main(prog_name="koord-numa")
