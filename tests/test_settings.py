"""The configuration: defaults, every field by its documented name, and mistakes that name their place."""

from pathlib import Path

import pytest

from koord_numa.core.objects.vocabulary import CpuBindPolicy, NumaExclusive, NumaPolicy, ScoringType
from koord_numa.core.scheduling.scorers import PREFERENCES, SCORERS
from koord_numa.settings import (
    NodesWithoutTopology,
    ProfileSettings,
    ResourceWeight,
    ScoreWeightSettings,
    ScoringStrategy,
    Settings,
    SettingsError,
    load_settings,
)
from tests.tables import each_row

WHOLE = """
apiVersion: koord-numa.io/v1alpha1
kind: KoordNumaConfiguration
profiles:
  - schedulerName: koord-numa
  - schedulerName: batch
    defaultCPUBindPolicy: SpreadByPCPUs
    defaultNUMAAlignmentPolicy: Restricted
    scoringStrategy:
      type: LeastAllocated
      resources: [{name: cpu, weight: 3}, {name: nvidia.com/gpu}]
    numaScoringStrategy: {type: BalancedAllocation}
    singleNUMANodeExclusive: Preferred
    nodesWithoutTopology: Permissive
    scoreWeights: {resources: 2, nodeAffinity: 0}
backoff: {initial: 2, max: 20, jitter: 0}
apiBackoff: {max: 9}
bindConcurrency: 4
lease: {namespace: numa}
"""


def test_the_empty_document_gives_the_documented_defaults() -> None:
    settings = load_settings("")
    assert settings == Settings()
    assert settings.scheduler_names == ("koord-numa",)
    profile = settings.profile("koord-numa")
    assert profile == ProfileSettings(
        default_cpu_bind_policy=CpuBindPolicy.FULL_PCPUS,
        default_numa_policy=NumaPolicy.BEST_EFFORT,
        scoring_strategy=ScoringStrategy(type=ScoringType.MOST_ALLOCATED),
        nodes_without_topology=NodesWithoutTopology.REFUSE,
    )


def test_every_field_is_read_by_its_documented_name(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(WHOLE)
    settings = load_settings(file)
    assert settings == load_settings(WHOLE)
    assert settings.profile("batch") == ProfileSettings(
        scheduler_name="batch",
        default_cpu_bind_policy=CpuBindPolicy.SPREAD_BY_PCPUS,
        default_numa_policy=NumaPolicy.RESTRICTED,
        scoring_strategy=ScoringStrategy(
            type=ScoringType.LEAST_ALLOCATED,
            resources=(ResourceWeight(name="cpu", weight=3), ResourceWeight(name="nvidia.com/gpu")),
        ),
        numa_scoring_strategy=ScoringStrategy(type=ScoringType.BALANCED_ALLOCATION),
        single_numa_node_exclusive=NumaExclusive.PREFERRED,
        nodes_without_topology=NodesWithoutTopology.PERMISSIVE,
        score_weights=ScoreWeightSettings(resources=2, node_affinity=0),
    )
    assert (settings.backoff.max, settings.api_backoff.max, settings.bind_concurrency) == (20, 9, 4)
    assert (settings.lease.namespace, settings.profile("default-scheduler")) == ("numa", None)


@each_row(
    ("text", "message"),
    [
        pytest.param(
            "profiles: [{scoringStrategy: {type: Most}}]", "profiles[0].scoringStrategy.type", id="no such type"
        ),
        pytest.param("profiles: []", "profiles: must have at least 1 item", id="none"),
        pytest.param("profils: []", "profils: there is no such setting; did you mean profiles?", id="unknown key"),
        pytest.param(
            "profiles: [{defaultCpuBindPolicies: FullPCPUs}]", "did you mean defaultCPUBindPolicy?", id="misspelled"
        ),
        pytest.param("profiles: [{nodeScorings: x}]", "did you mean nodeScoring?", id="plural"),
        pytest.param(
            "lease: {durationn: 15}", "lease.durationn: there is no such setting; did you mean duration?", id="nested"
        ),
        pytest.param("scoringStrategy: {}", "did you mean profiles[].scoringStrategy?", id="another section"),
        pytest.param(
            "profiles: [{numaTopologyPolicy: x}]",
            "did you mean defaultNUMAAlignmentPolicy?",
            id="of a pod's annotation",
        ),
        pytest.param("leaderElection: {}", "did you mean lease?", id="of kube-scheduler"),
        pytest.param("podMaxBackoffSeconds: 3", "did you mean backoff.max?", id="of kube-scheduler too"),
        pytest.param(
            "profiles: [{numaTopologyAlignmentPolicy: Restricted, defaultNUMAAlignmentPolicy: BestEffort}]",
            "there is no such setting",
            id="a setting under both of its names",
        ),
        pytest.param("bindConcurrency: 0", "bindConcurrency", id="out of range"),
        pytest.param("bindConcurrency: many", "bindConcurrency: must be a whole number", id="wrong type"),
        pytest.param("bindConcurrency: 1.5", "bindConcurrency: must be a whole number", id="a fraction"),
        pytest.param("lease: {duration: long}", "lease.duration: must be a number", id="no number"),
        pytest.param("lease: 15", "lease: must be a mapping", id="no mapping"),
        pytest.param("lease: {name: 3}", "lease.name: must be a string", id="no string"),
        pytest.param("profiles: null", "profiles: must be a list", id="no list"),
        pytest.param("preemption: {enabled: 3}", "preemption.enabled: must be true or false", id="no truth value"),
        pytest.param("parkedRetrySeconds: .inf", "parkedRetrySeconds: must be a finite number", id="no end"),
        pytest.param("lease: {duration: .inf}", "lease.duration: must be a finite number", id="an endless lease"),
        pytest.param("kind: Other", "kind", id="another kind"),
        pytest.param("apiVersion: v2", "apiVersion", id="another version"),
        pytest.param("backoff: {initial: 9, max: 1}", "backoff: max is smaller than initial", id="reversed"),
        pytest.param(
            "lease: {duration: 5}", "lease: must hold: retry < renew < duration", id="a lease that cannot be renewed"
        ),
        pytest.param(
            "profiles: [{schedulerName: a}, {schedulerName: a}]",
            "the document: two profiles have the same schedulerName",
            id="two of a name",
        ),
        pytest.param(
            "profiles: [{defaultCPUBindPolicy: ConstrainedBurst}]",
            "profiles[0]: defaultCPUBindPolicy must be FullPCPUs, SpreadByPCPUs or empty",
            id="no default",
        ),
        pytest.param(
            "profiles: [{numaScoringStrategy: {type: LeastNUMANodes}}]",
            "profiles[0]: numaScoringStrategy.type: LeastNUMANodes is not possible",
            id="means nothing",
        ),
        pytest.param(
            "profiles: [{scoringStrategy: {type: MostAllocated, resources: [{name: cpu}, {name: cpu}]}}]",
            "profiles[0].scoringStrategy: a resource has two weights",
            id="weighted twice",
        ),
        pytest.param(
            "profiles: [{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 101}]}}]",
            "profiles[0].scoringStrategy.resources[0].weight",
            id="too heavy",
        ),
        pytest.param("- a list", "must be a mapping, found list", id="a list"),
        pytest.param("{", "is not YAML", id="no YAML"),
    ],
)
def test_a_mistake_names_its_place(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("KoordNumaConfiguration: ")


def test_many_mistakes_are_counted() -> None:
    with pytest.raises(SettingsError, match=r"; and 3 more$"):
        load_settings("{a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml: cannot be read"):
        load_settings(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(SettingsError, match=r"broken\.yaml: cannot be read"):
        load_settings(broken)


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings("").bind_concurrency = 1  # type: ignore[misc]  # that is the point


@each_row(("text", "how"), [("Off", "Off"), ('"Off"', "Off"), ("Rebind", "Rebind"), ("Evict", "Evict")])
def test_an_unquoted_off_is_a_word(text: str, how: str) -> None:
    assert load_settings(f"repairDoubleHolds: {text}").repair_double_holds == how


def test_headroom_is_read_as_quantities() -> None:
    assert load_settings("headroom: {cpu: 1500m, memory: 1Gi}").headroom_amounts == {"cpu": 1500, "memory": 1 << 30}


@pytest.mark.parametrize("text", ["headroom: {cpu: x}", "headroom: {cpu: -1}"])
def test_a_headroom_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="headroom"):
        load_settings(text)


@pytest.mark.parametrize("key", ["defaultNUMAAlignmentPolicy", "numaTopologyAlignmentPolicy"])
def test_the_default_policy_has_the_proposals_name_too(key: str) -> None:
    assert load_settings(f"profiles: [{{{key}: Restricted}}]").profiles[0].default_numa_policy is NumaPolicy.RESTRICTED


def test_a_strategy_without_a_type_is_the_proposals_default() -> None:
    text = "profiles: [{scoringStrategy: {resources: [{name: cpu, weight: 2}]}, numaScoringStrategy: {}}]"
    profile = load_settings(text).profiles[0]
    assert (profile.scoring_strategy.type, profile.numa_scoring_strategy.type) == (ScoringType.MOST_ALLOCATED,) * 2


def test_every_scorer_has_a_weight_in_the_settings() -> None:
    assert ScoreWeightSettings().model_dump() == {row.name: row.weight for row in (*SCORERS, *PREFERENCES)}
