"""A purge that fails is told as failed in the audit topic."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.admin.dead.redoing import purge
from halfbridge.checker.admin.operator_log import ActionFilter, read
from halfbridge.checker.errors import AdminError
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.records import ActionOutcome
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.client import Kind
from tests.kit.dead_letters import TOPIC, Dying, Scene, order


class _NoDeletion(Dying):
    """Brokers refuse to delete records."""

    def request(self, client: Any, kind: Kind, place: Any, do: Any, timeout_s: float) -> Any:
        """Refuse a deletion, do everything else."""
        if kind is Kind.DELETE_RECORDS:
            raise KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED, "no right")
        return super().request(client, kind, place, do, timeout_s)


def test_a_deletion_that_is_refused_is_an_action_that_failed() -> None:
    """The transaction is given up, and its action done; the deletion's action has failed."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        scene = Scene(stack)
        scene.extra(1)
        scene.settle()
        scene.network = _NoDeletion(stack.machine.scheduler)
        with pytest.raises(AdminError, match="no right"):
            purge(scene.letters(), order(1), lambda _meant: True, gives_up=True)
        kept = read(scene.letters().cluster, scene.names, ActionFilter(limit=9))
        outcomes = [each.action.outcome for each in kept if each.action is not None]
        assert outcomes == [
            ActionOutcome.INTENDED,
            ActionOutcome.DONE,
            ActionOutcome.INTENDED,
            ActionOutcome.FAILED,
        ]
