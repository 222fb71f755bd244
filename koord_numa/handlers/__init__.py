"""The only package that uses Kopf: a table of triggers with one-line bodies."""
