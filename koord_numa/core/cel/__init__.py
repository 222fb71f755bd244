"""
The Common Expression Language of DRA device selectors: a small compiler for the environment in which Kubernetes evaluates them.

``compile_selector`` turns a text into a ``Program`` once; ``Program.matches`` evaluates it for one device. The layers, bottom up:
values and types, the function library (rows of signature, implementation and cost), lexer, parser with macros, checker, compiler.
"""
