"""A subset of JSONPath for printer columns: fields, quoted fields, indexes, wildcards, and filters with one condition."""

import re
from collections.abc import Iterator
from typing import Any, Final

_STEP: Final = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\\])+)          # .field, with \. for a dot inside
      | \[(?P<index>-?\d+)\]                    # [0]
      | \[['"](?P<quoted>[^'"]+)['"]\]          # ['field']
      | \[(?P<all>\*)\] | \.\*
      | \[\?\(@(?P<path>[^=<>!\]]+)\s*==\s*['"]?(?P<value>[^'")]*)['"]?\)\]""",
    re.VERBOSE,
)


def find(document: Any, path: str) -> list[Any]:
    """
    Return all values at a path such as ``.status.conditions[?(@.type=="Ready")].status``.

    Empty for a path that cannot be parsed.
    """
    values = [document]
    position = 0
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            return []
        values = [found for value in values for found in _follow(value, step)]
        position = step.end()
    return values


def _follow(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = step["field"] or step["quoted"]
    if name is not None and name != "*":
        name = re.sub(r"\\(.)", r"\1", name)
        if isinstance(value, dict) and value.get(name) is not None:
            yield value[name]
    elif step["index"] is not None:
        if isinstance(value, list) and -len(value) <= int(step["index"]) < len(value):
            yield value[int(step["index"])]
    elif step["path"] is not None:
        for item in value if isinstance(value, list) else ():
            if any(str(found) == step["value"] for found in find(item, step["path"].strip())):
                yield item
    else:
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
