"""One module per command. The module has the name of the command and a ``click`` command named ``command``."""
