"""Lives drawn from seeds, harsher than those of the law: what the engine places, the kubelet keeps."""

from typing import Final

import pytest

from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines.agents import KubeletAgent, RefusedPod
from tests.kubelets.exporters.exported_life import Exporter
from tests.kubelets.lives.__main__ import main
from tests.kubelets.lives.drawn_life import drawn_life, wrong_yes
from tests.kubelets.lives.kinds import Kinds, Share
from tests.tables import each_row

EACH: Final = 5
"""Lives of each kind in every run, the same ones; with more of the law's examples, a tenth as many of these."""

KINDS: Final = {
    "any": Kinds(),
    "distributed": Kinds(
        policies=(KubeletPolicy.RESTRICTED,),
        demanded=("distribute-cpus-across-numa",),
        published=Share.ALWAYS,
        length=90,
    ),
    "distributed-by-socket": Kinds(
        policies=(KubeletPolicy.RESTRICTED,),
        demanded=("align-by-socket", "distribute-cpus-across-numa"),
        published=Share.ALWAYS,
        length=90,
    ),
    "best-effort": Kinds(policies=(KubeletPolicy.BEST_EFFORT,), scopes=(KubeletScope.CONTAINER,), length=90),
    "no-fingerprint": Kinds(
        policies=(KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED), exporters=(Exporter.NFD_BARE,), length=90
    ),
    "restricted-restarts": Kinds(policies=(KubeletPolicy.RESTRICTED,), restarts=Share.ALWAYS),
    "no-fingerprint-restarts": Kinds(exporters=(Exporter.NFD_BARE,), restarts=Share.ALWAYS),
    "no-options": Kinds(options=(), published=Share.ALWAYS),
    "restarts": Kinds(restarts=Share.ALWAYS, foreign_refusals=Share.ALWAYS),
}
"""Kinds of lives: all, and those that are most likely to break an admission."""


BROKE: Final = (
    ("distributed-by-socket", 1296),  # equal distances between all NUMA nodes, of which two are in each socket
    ("distributed-by-socket", 1321),  # CPUs of a finished init container on another NUMA node of its pod's socket
    (
        "restricted-restarts",
        22030,
    ),  # a late topology without fingerprint showed a pod of several NUMA nodes that had left
    ("any", 70471),  # a late topology showed another pod of the same name, and with less memory than is in use
    ("any", 74477),  # only a share that an option may deal out, which was not asked about, spoke against a pod
    ("any", 79789),  # after a restart: CPUs of finished init containers whose apps are on other NUMA nodes
    ("no-options", 720868),  # what a container on two NUMA nodes takes over of one may leave a CPU of the other free
    ("any", 84516),  # late topologies showed two departed pods, and others of their names vouched for each other
    ("distributed", 254),  # after a restart: the pod of unknown init containers' CPUs and another had both left unseen
    ("no-fingerprint-restarts", 66850),  # with more room a container took the CPUs beside the only free device
    ("any", 600369),  # a pod of three NUMA nodes is admitted under single-numa-node only while their memory is in use
    ("restricted-restarts", 600458),  # the topology before a restart showed the earlier pod of a name
    ("restricted-restarts", 711574),  # an init container got one CPU of each core of both NUMA nodes of its socket
    (
        "no-fingerprint-restarts",
        902516,
    ),  # a pod left unseen before the verdict on it, so that later ones took its place
    ("any", 750009),  # a pod in flight was on another NUMA node than predicted, beside reserved CPUs that split cores
    ("restarts", 1003445),  # after a restart: another NUMA node of a memory group was full than the topology showed
    ("no-options", 6000609),  # an odd number of CPUs on several NUMA nodes left a thread of a core free on one of them
    ("no-options", 7005154),  # two free devices were near another pair of NUMA nodes than the pod's CPUs
    ("distributed-by-socket", 703441),  # after a restart: CPUs of unpublished pods on another NUMA node of the socket
)
"""Lives that broke a yes once, by kind and seed."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_kubelet_keeps_what_is_placed(kind: str, pytestconfig: pytest.Config) -> None:
    seeds = range(max(EACH, int(pytestconfig.getoption("--law-examples")) // 10))
    found = {seed: wrong for seed in seeds if (wrong := wrong_yes(drawn_life(seed, KINDS[kind])))}
    assert not found, "\n".join(f"seed {seed}: {line}" for seed, lines in found.items() for line in lines)


@each_row(("kind", "seed"), BROKE)
def test_lives_that_broke_a_yes_are_kept(kind: str, seed: int) -> None:
    assert not wrong_yes(drawn_life(seed, KINDS[kind]))


def test_a_seed_is_one_life() -> None:
    one, same, other = (drawn_life(seed, KINDS["restarts"]) for seed in (1, 1, 2))
    assert one.log == same.log
    assert any(line.endswith(" restart") for line in one.log)
    assert one.log != other.log


def test_the_command_lives_the_lives_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "2", "--policies", "single-numa-node", "--exporters", "rte,nfd", "--restarts", "never"]) == 0
    assert "3 lives" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["0", "2", "--policies", "strict"])


@each_row("seed", range(20))
def test_what_is_demanded_is_drawn(seed: int) -> None:
    life = drawn_life(seed, Kinds(options=(), demanded=("full-pcpus-only",), published=Share.ALWAYS, numa=3, length=1))
    config = life.description.kubelet
    assert config.cpu_options == {"full-pcpus-only": True}
    assert config.cpu_policy == "static"
    assert len(life.description.hardware.machine.numa_ids) == 3
    assert not life.description.hidden


def test_a_life_breaks_where_the_kubelet_refuses_what_was_placed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(KubeletAgent, "admit", lambda *_: RefusedPod("TopologyAffinityError", "no room"))
    assert main(["0", "3"]) == 1
    assert "lives broken [0" in capsys.readouterr().out
