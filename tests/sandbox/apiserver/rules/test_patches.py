"""The patch formats and the smaller rules on plain documents, and laws that hold for all of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.sandbox.apiserver import ApiError
from koord_numa.sandbox.apiserver.backend import version_rank
from koord_numa.sandbox.apiserver.columns import age, human_duration
from koord_numa.sandbox.apiserver.patches import merge_patch, strategic_merge_patch
from koord_numa.sandbox.apiserver.storage import ObjectKey, TableStorage
from koord_numa.wire.raw_json import find
from tests.tables import each_row

# The test cases of RFC 7386, appendix A.
RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@each_row(("document", "patch", "expected"), RFC_7386)
def test_merge_patch_as_its_rfc(document: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(document, patch) == expected


documents = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(
        st.integers(0, 3) | st.text("xy", max_size=2),
        lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3) | st.lists(inner, max_size=2),
        max_leaves=5,
    ),
    max_size=4,
)


@given(documents, documents)
def test_merging_twice_is_merging_once(document: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once


@given(documents, documents)
def test_without_keyed_lists_both_merges_agree(document: dict[str, Any], patch: dict[str, Any]) -> None:
    assert strategic_merge_patch(document, patch) == merge_patch(document, patch)


@given(st.lists(st.sampled_from("ABCDE"), unique=True), st.lists(st.sampled_from("ABCDE"), unique=True))
def test_conditions_merge_by_type_whatever_their_order(current: list[str], patched: list[str]) -> None:
    document = {"status": {"conditions": [{"type": kind, "status": "old"} for kind in current]}}
    patch = {"status": {"conditions": [{"type": kind, "status": "new"} for kind in patched]}}
    merged = strategic_merge_patch(document, patch)["status"]["conditions"]
    assert {one["type"]: one["status"] for one in merged} == dict.fromkeys(current, "old") | dict.fromkeys(
        patched, "new"
    )
    assert [one["type"] for one in merged] == [*current, *(kind for kind in patched if kind not in current)]


DOCUMENT = {"a": {"b.c": 1, "d": [{"t": "x", "v": 1}, {"t": "y", "v": 2}]}, "e": False}
PATHS = [
    (".e", [False]),
    (".a.d[0].v", [1]),
    (".a.d[-1].v", [2]),
    (".a.d[*].v", [1, 2]),
    ('.a.d[?(@.t=="y")].v', [2]),
    (".a.d[?(@.t == 'z')].v", []),
    (r".a.b\.c", [1]),
    (".a['b.c']", [1]),
    ("{.e}", [False]),
    (".absent.deep", []),
    (".a.d[7]", []),
    ("e", []),
]


@each_row(("path", "expected"), PATHS, ids=[path for path, _ in PATHS])
def test_printer_paths(path: str, expected: list[Any]) -> None:
    assert find(DOCUMENT, path) == expected


DURATIONS = [
    (-1, "0s"),
    (119, "119s"),
    (120, "2m"),
    (200, "3m20s"),
    (600, "10m"),
    (10_800, "3h"),
    (12_000, "3h20m"),
    (86_400, "24h"),
    (180_000, "2d2h"),
    (1_000_000, "11d"),
    (100_000_000, "3y62d"),
]


@each_row(("seconds", "expected"), DURATIONS)
def test_durations(seconds: int, expected: str) -> None:
    assert human_duration(seconds) == expected


@each_row("moment", [None, "", "yesterday", "2026-01-01T00:00:00"])
def test_no_age(moment: Any) -> None:
    assert age(moment) == "<unknown>"


def test_versions_are_ranked_as_kubernetes_does() -> None:
    versions = ["v1alpha1", "foo", "v1beta2", "v11", "v2", "v1beta10", "v1"]
    assert sorted(versions, key=version_rank) == ["v11", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from("xyz"), st.booleans()), max_size=40),
    st.integers(1, 10),
)
def test_a_table_and_its_history_tell_the_same_story(steps: list[tuple[str, str, bool]], history: int) -> None:
    storage = TableStorage(history)
    table = storage.table("things")
    start = storage.revision
    mirror: dict[ObjectKey, int] = {}
    for namespace, name, keep in steps:
        document = {"apiVersion": "v1", "metadata": {"namespace": namespace, "name": name}}
        key = ObjectKey(namespace, name)
        if keep:
            mirror[key] = storage.put(table, document, {}).revision
        elif mirror.pop(key, None):
            storage.drop(table, document, {})
    assert [(record.key, record.revision) for record in table] == sorted(mirror.items())
    assert [record.key for record in table.in_namespace("a")] == sorted(key for key in mirror if key.namespace == "a")
    changes = table.since(max(start, table.forgotten))
    assert [change.revision for change in changes] == sorted({change.revision for change in changes})
    assert len(changes) >= min(history, storage.revision - start)


@each_row("items", [3, {}, "x", {"a": []}])
def test_items_to_delete_that_are_no_list_are_refused(items: Any) -> None:
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": items}}
    with pytest.raises(ApiError) as caught:
        strategic_merge_patch({"metadata": {"finalizers": [{"a": 1}]}}, patch)
    assert caught.value.code == 400
