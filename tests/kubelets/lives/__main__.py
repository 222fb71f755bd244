"""
``python -m tests.kubelets.lives FIRST LAST``: live the lives of these seeds, and print those that break.

In such a life the kubelet refuses what the engine places and does not explore an option with.

Each takes some tenths of a second. The same seed and options give the same life; ``--log`` prints all that happened.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from time import process_time

from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from tests.kubelets.lives.drawn_life import drawn_life, wrong_yes
from tests.kubelets.lives.kinds import CPU_OPTIONS, EXPORTERS, Kinds, Share


def main(arguments: Sequence[str]) -> int:
    """Status 1 where a life breaks the law."""
    given = _parser().parse_args(arguments)
    kinds = kinds_of(given)
    asked = placed = explored = 0
    broken = []
    started = process_time()
    for seed in range(given.first, given.last + 1):
        life = drawn_life(seed, kinds)
        asked += life.asked
        placed += life.placed
        explored += sum(1 for refusal in life.refusals if refusal.explored)
        if found := wrong_yes(life):
            broken.append(seed)
            shown = found if given.log else [found[0], found[1], *(str(one) for one in life.refusals)]
            print(f"seed {seed}:", "\n  ".join(shown), flush=True)
    lives = given.last + 1 - given.first
    print(
        f"{lives} lives, {asked} pods asked about, {placed} placed, {explored} refused that explored an option;",
        end=" ",
    )
    print(f"{len(broken)} lives broken {broken}; {(process_time() - started) / max(1, lives):.2f} s each")
    return int(bool(broken))


def kinds_of(given: argparse.Namespace) -> Kinds:
    """Return the kinds that the command line selects. Seeds decide those that it leaves out."""
    open_ = Kinds()
    return Kinds(
        policies=tuple(map(KubeletPolicy, given.policies)) or open_.policies,
        scopes=tuple(map(KubeletScope, given.scopes)) or open_.scopes,
        exporters=tuple(EXPORTERS[name] for name in given.exporters) or open_.exporters,
        options=CPU_OPTIONS if given.options is None else tuple(given.options),
        demanded=tuple(given.demand),
        published=Share(given.published),
        restarts=Share(given.restarts),
        foreign_refusals=Share(given.foreign_refusals),
        shared_devices=Share(given.shared_devices),
        numa=given.numa,
        length=given.length,
    )


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads names with commas between them."""
    allowed = [*known]

    def read(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if unknown := [name for name in found if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(allowed)}")
        return found

    return read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kubelets.lives", description=__doc__)
    parser.add_argument("first", type=int, metavar="FIRST", help="the first seed")
    parser.add_argument("last", type=int, metavar="LAST", help="the last seed")
    parser.add_argument("--policies", type=_names([policy.value for policy in KubeletPolicy]), default=[])
    parser.add_argument("--scopes", type=_names([scope.value for scope in KubeletScope]), default=[])
    parser.add_argument("--exporters", type=_names(list(EXPORTERS)), default=[])
    parser.add_argument("--options", type=_names(CPU_OPTIONS), help="options that may be on; '' for none")
    parser.add_argument("--demand", type=_names(CPU_OPTIONS), default=[], help="options that are on")
    for name in ("restarts", "foreign-refusals", "shared-devices", "published"):
        # Said alone it is meant for every life.
        parser.add_argument(
            f"--{name}",
            choices=[share.value for share in Share],
            nargs="?",
            const=Share.ALWAYS.value,
            default=Share.SOMETIMES.value,
        )
    parser.add_argument("--numa", type=int, default=0, help="so many NUMA nodes")
    parser.add_argument("--length", type=int, default=0, help="so many actions")
    parser.add_argument("--log", action="store_true", help="print all of a life that breaks")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
