"""A class hears of itself again when its reasons change, or when its numbers are old."""

from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.engine.cache.listers import PodIndex
from koord_numa.engine.object_events import NEWS_SECONDS, Messages
from koord_numa.engine.queue.pending_pod import RequestClasses
from koord_numa.settings import Settings
from tests.engine.world import make_pod

CLASSES = RequestClasses(Settings(), PodIndex())


def short(*free: int) -> Unschedulable:
    found = {
        f"node-{i}": Rejection(Reason.RESOURCES, "Insufficient cpu", f"{cpu} CPUs free") for i, cpu in enumerate(free)
    }
    return Unschedulable(found)


def test_numbers_alone_are_no_news_for_a_while() -> None:
    sentences, request_class = Messages(), CLASSES.of(make_pod("pod"))
    assert request_class is not None
    first, news = sentences.say(request_class, short(1, 2), now=0)
    assert (first.splitlines()[0], news) == ("0/2 nodes are available: 2 Insufficient cpu.", True)
    assert sentences.say(request_class, short(3, 4), now=1) == (first, False)
    assert "5 CPUs free" in sentences.current(request_class, short(5, 6))
    later, news = sentences.say(request_class, short(3, 4), now=NEWS_SECONDS)
    assert (later != first, news) == (True, True)
    assert sentences.say(request_class, short(3, 4), now=2 * NEWS_SECONDS) == (later, False)


def test_another_count_is_news_at_once() -> None:
    sentences, request_class = Messages(), CLASSES.of(make_pod("pod"))
    assert request_class is not None
    sentences.say(request_class, short(1, 2), now=0)
    told, news = sentences.say(request_class, short(1, 2, 3), now=1)
    assert (told.splitlines()[0], news) == ("0/3 nodes are available: 3 Insufficient cpu.", True)


def test_a_cluster_without_nodes_is_said() -> None:
    request_class = CLASSES.of(make_pod("pod"))
    assert request_class is not None
    assert Messages().current(request_class, Unschedulable({})) == "0/0 nodes are available: no node is known."
