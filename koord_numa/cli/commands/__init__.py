"""One module a command, under the command's name; each has a ``click`` command named ``command``."""
