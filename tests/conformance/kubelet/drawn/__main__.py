"""
``python -m tests.conformance.kubelet.drawn FOLDER FIRST LAST``: write the sequences of these seeds as ``FOLDER/kubelet-churn.jsonl``.

``KOORD_NUMA_VECTORS=FOLDER pytest tests/conformance/kubelet/test_churn.py`` judges them as it does recorded ones.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.kubelet.churn import LONG, class_of
from tests.conformance.kubelet.drawn.sequences import drawn_sequence
from tests.conformance.vectors import Case, cases, folder


def machines() -> list[Case]:
    """The recorded sequences whose machines are drawn from."""
    return [case for case in cases(folder() / "kubelet-churn.jsonl") if class_of(case) == LONG]


def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    into, first, last = arguments
    recorded = machines()
    Path(into).mkdir(parents=True, exist_ok=True)
    with (Path(into) / "kubelet-churn.jsonl").open("w") as file:
        for seed in range(int(first), int(last) + 1):
            file.write(json.dumps(drawn_sequence(seed, recorded)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
