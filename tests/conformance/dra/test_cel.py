"""Device selectors against recorded answers."""

import json
from pathlib import Path

from koord_numa.core.cel.estimate import estimate_cost
from tests.conformance.dra import cel as dra_cel
from tests.conformance.vectors import Conforms, each_file


@each_file("dra-cel")
def test_dra_cel(file: Path, conforms: Conforms) -> None:
    conforms(dra_cel.ORACLE, file)


@each_file("dra-cel")
def test_estimated_costs(file: Path) -> None:
    """The API server decides by the estimate whether it stores an expression."""
    cases = map(json.loads, file.read_text().splitlines())
    recorded = {
        case["expression"]: case["maxCost"] for case in cases if "compileError" not in case and "maxCost" in case
    }
    assert recorded
    assert {expression: estimate_cost(expression) for expression in recorded} == recorded
