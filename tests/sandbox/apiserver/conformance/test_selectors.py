"""Selectors of devices: an expression is stored only if it compiles, and its estimated cost and its length are within the limits."""

import json
from typing import Any

import pytest

from koord_numa.core.cel.estimate import UNKNOWN, estimate_cost
from tests.sandbox.apiserver.client import Api
from tests.tables import each_row

RESOURCE = "/apis/resource.k8s.io/v1"
TEN = "[1,2,3,4,5,6,7,8,9,10]"
EXPENSIVE = f"{TEN}.all(a,{TEN}.all(b,{TEN}.all(c,{TEN}.all(d,{TEN}.all(e,a+b+c+d+e>0)))))"
PLACES = ("devices.requests[0].exactly.selectors[0]", "devices.requests[1].firstAvailable[0].selectors[0]")
TOO_COMPLEX = "Forbidden: too complex, exceeds cost limit"


def _claim(expression: str) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    request = {"name": "r", "exactly": {"deviceClassName": "c", "selectors": selectors}}
    either = {"name": "s", "firstAvailable": [{"name": "x", "deviceClassName": "c", "selectors": selectors}]}
    return {"devices": {"requests": [request, either]}}


def _written(kind: str, expression: str) -> tuple[str, dict[str, Any]]:
    metadata = {"name": "o"}
    if kind == "deviceclasses":
        return f"{RESOURCE}/{kind}", {
            "metadata": metadata,
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
    spec = _claim(expression) if kind == "resourceclaims" else {"spec": _claim(expression)}
    return f"{RESOURCE}/namespaces/default/{kind}", {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("deviceclasses", ["spec.selectors[0]"]),
        ("resourceclaims", [f"spec.{place}" for place in PLACES]),
        ("resourceclaimtemplates", [f"spec.spec.{place}" for place in PLACES]),
    ],
)
async def test_selectors_beyond_the_cost_limit(api: Api, kind: str, fields: list[str]) -> None:
    answer = await api.post(*_written(kind, EXPENSIVE))
    assert answer.status == 422
    causes = [(cause["field"], cause["message"]) for cause in answer.body["details"]["causes"]]
    assert causes == [(f"{field}.cel.expression", TOO_COMPLEX) for field in fields]
    assert (await api.post(*_written(kind, "device.driver == 'gpu.example.com'"))).status == 201


@pytest.mark.parametrize(
    "expression", ["device.driver ==", "device.name == 'a'", "1", "device.attributes['d'].x in", "true; DROP"]
)
@pytest.mark.parametrize("kind", ["deviceclasses", "resourceclaims", "resourceclaimtemplates"])
async def test_selectors_that_do_not_compile(api: Api, kind: str, expression: str) -> None:
    answer = await api.post(*_written(kind, expression))
    assert answer.status == 422
    cause = answer.body["details"]["causes"][0]
    assert cause["field"].endswith(".selectors[0].cel.expression")
    assert cause["message"].startswith(f"Invalid value: {json.dumps(expression)}: compilation failed: ")


async def test_selectors_beyond_the_length_limit(api: Api) -> None:
    long = "true" + " " * (10 * 1024 - 4)
    assert (await api.post(*_written("deviceclasses", long + " "))).status == 422
    assert (await api.post(*_written("deviceclasses", long))).status == 201


@each_row(
    ("expression", "cost"),
    [
        ("true", 0),
        ("device.driver == 'a'", 3),
        ("has(device.attributes['d'].x)", 3),
        ("device.attributes['d'].x.exists(x, x > 0)", 5 + 6 * 64),
        ("device.attributes['d'].x.matches('a+')", 11),
        ("[3, 1, 2].sortBy(x, -x) == [1, 2, 3]", 10 + 10 + 1 + 1 + 10 + 1 + 3 * 14 + 18 + 11 + 10 + 1),
        ("device.attributes['d'].?x.optMap(x, x + '!').orValue('') == 'a!'", 1844674407370955288),
        ("[device.driver, device.driver].join(',').split(',').all(x, true)", UNKNOWN),
    ],
)
def test_estimates(expression: str, cost: int) -> None:
    assert estimate_cost(expression) == cost
