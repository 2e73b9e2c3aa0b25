"""The internal topics and what is wrong with them, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.testkit.memory import MemoryStack
from tests.kit.web import MemoryWeb


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation."""
    with MemoryStack(partitions=1) as made:
        yield made


def test_page_and_api_say_what_the_command_says(stack: MemoryStack, tmp_path: Path) -> None:
    """Each problem with its topic and the command that mends it."""
    web = MemoryWeb(stack, tmp_path)
    stack.machine.broker.topic(stack.config.names.half).settings["cleanup.policy"] = "compact"
    body = web.get("/api/v1/topics").json()
    assert not body["ok"]
    (problem,) = [each for each in body["problems"] if "compact" in each["what"]]
    page = web.get("/topics").text
    assert "Not well" in page
    assert problem["subject"] in page
    assert problem["fix"].split()[0] in page
