"""Lists and watches whose objects stay text: the same objects, versions and errors as when everything is decoded."""

import pytest

from koord_numa.cluster.client import decoded
from koord_numa.cluster.lister import unread_event, unread_page
from koord_numa.cluster.resources import PODS, Call
from koord_numa.ports import Invalid
from koord_numa.wire.raw_json import UnreadObject
from tests.tables import each_row

LIST = Call("list", PODS)
WATCH = Call("watch", PODS)

PAGE = b'{"metadata":{"resourceVersion":"9","continue":"more"},"items":[{"metadata":{"uid":"a"}},{"spec":{}}]}'
DEEP = b'{"metadata":{"resourceVersion":"9"},"items":[{"spec":' + b"[" * 5000 + b"]" * 5000 + b"}]}"


def test_objects_of_a_page_are_left_as_text() -> None:
    page = unread_page(LIST, PAGE)
    assert page["metadata"] == {"resourceVersion": "9", "continue": "more"}
    assert [type(item) for item in page["items"]] == [UnreadObject, UnreadObject]
    assert [dict(item) for item in page["items"]] == decoded(LIST, PAGE)["items"]


@each_row(
    "raw",
    [b'{"metadata":{},"items":null}', b'{"items":[],"metadata":null}', b"{}", DEEP],
    ids=["null", "no", "{}", "deep"],
)
def test_an_unusual_list_page_is_decoded_as_any_response(raw: bytes) -> None:
    page, plain = unread_page(LIST, raw), decoded(LIST, raw)
    assert (page.get("metadata"), len(page.get("items") or ())) == (
        plain.get("metadata"),
        len(plain.get("items") or ()),
    )


def test_a_deeply_nested_object_costs_the_others_nothing() -> None:
    raw = DEEP.replace(b'"items":[', b'"items":[{"metadata":{"uid":"good"}},')
    good, deep = unread_page(LIST, raw)["items"]
    assert good["metadata"] == {"uid": "good"}
    assert len(deep["spec"]) == 1


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_an_object_that_changed_is_left_as_text(kind: str) -> None:
    line = b'{"type":"%s","object":{"metadata":{"uid":"a","resourceVersion":"4"}}}' % kind.encode()
    event = unread_event(WATCH, line)
    assert event["type"] == kind
    assert isinstance(event["object"], UnreadObject)
    assert (event["object"].identity.uid, event["object"].identity.resource_version) == ("a", "4")


@pytest.mark.parametrize(
    "line",
    [b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"}}}', b'{"type":"ERROR","object":{"code":410}}'],
)
def test_everything_else_is_decoded(line: bytes) -> None:
    assert unread_event(WATCH, line) == decoded(WATCH, line)


@pytest.mark.parametrize("raw", [b"<html>", b"", b'{"items":['])
def test_what_is_no_json_is_an_error_of_the_answer(raw: bytes) -> None:
    with pytest.raises(Invalid):
        unread_page(LIST, raw)
    with pytest.raises(Invalid):
        unread_event(WATCH, raw)
