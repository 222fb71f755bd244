"""
Compile and evaluate the Common Expression Language of DRA device selectors, in the environment of Kubernetes.

``compile_selector`` compiles an expression into a ``Program``. ``Program.matches`` evaluates the program for one
device. The layers, bottom up: values and types, the function library (rows of signature, implementation and cost),
lexer, parser with macros, checker, compiler.
"""
