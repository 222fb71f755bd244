"""The only Kopf code: a table of triggers with one-line bodies."""
