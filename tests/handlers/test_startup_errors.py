"""Errors at the start of ``kopf run`` end the process with one sentence, without a traceback."""

from typing import Any

import kopf
import pytest

from koord_numa.handlers import embedding


@pytest.mark.parametrize("error", [OSError("cannot listen on port 10251"), ValueError("port: 'x' is no number")])
async def test_a_start_that_fails_is_one_sentence(error: Exception) -> None:
    registry = kopf.OperatorRegistry()

    async def start() -> embedding.EmbeddingProcess:
        raise error

    embedding.attach(registry, start)
    [handler] = [it for it in registry._activities._handlers if it.id.endswith("startup")]
    function: Any = handler.fn
    with pytest.raises(SystemExit, match=f"^koord-numa cannot start: {error}$"):
        await function(settings=kopf.OperatorSettings(), memo=kopf.Memo())
