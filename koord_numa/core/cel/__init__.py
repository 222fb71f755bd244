"""
Compile and evaluate the Common Expression Language of DRA device selectors, in the environment of Kubernetes.

``compile_selector`` compiles an expression into a ``Program``. ``Program.matches`` evaluates the program for one
device. The layers, bottom up: values and types, the function library (rows of signature, implementation and cost),
lexer, parser with macros, checker, compiler.
"""

from koord_numa.core.cel.program import CelDevice, Program, compile_selector, is_compiled
from koord_numa.core.cel.runtime import LIMITS
from koord_numa.core.cel.values import (
    EMPTY_MAP,
    NANO,
    CelError,
    CompileError,
    MapValue,
    Quantity,
    Semver,
    Unreadable,
    detached,
    parse_semver,
)

__all__ = [
    "EMPTY_MAP",
    "LIMITS",
    "NANO",
    "CelDevice",
    "CelError",
    "CompileError",
    "MapValue",
    "Program",
    "Quantity",
    "Semver",
    "Unreadable",
    "compile_selector",
    "detached",
    "is_compiled",
    "parse_semver",
]
