"""Errors of the sink say who must act, by the tree of the client's errors too."""

from __future__ import annotations

import pickle

import pytest

from halfbridge.kafka import errors as bridge
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.spark_jobs.sink.errors import (
    AttemptGivenUpError,
    CommitInDoubtError,
    RowError,
    SendError,
    SinkError,
    SinkOptionError,
    SinkSetupError,
    failing_as,
)

REFUSED = bridge.ConfigError(
    field="kafka", value="no such property", origin="Kafka client", allowed="properties"
)


@pytest.mark.parametrize(
    ("error", "acts"),
    [
        (SinkOptionError, bridge.ConfigError),
        (SinkOptionError, ValueError),
        (SinkSetupError, bridge.TopicSetupError),
        (RowError, bridge.InvalidMessageError),
        (RowError, ValueError),
        (SendError, bridge.RetriableError),
        (CommitInDoubtError, bridge.OutcomeUnknownError),
        (AttemptGivenUpError, bridge.RetriableError),
    ],
)
def test_who_must_act_is_told_by_the_clients_tree(
    error: type[SinkError], acts: type[Exception]
) -> None:
    """Code that knows the client's errors knows what to do; the text is kept, pickled too."""
    raised = error("the text")
    assert isinstance(raised, acts)
    assert isinstance(raised, bridge.BridgeError)
    assert (str(raised), str(pickle.loads(pickle.dumps(raised)))) == ("the text", "the text")


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        (KafkaFailure(Code.TIMED_OUT, "too late"), SendError, "asking: _TIMED_OUT: too late"),
        (bridge.RetriableError("no answer"), SendError, "asking: no answer"),
        (BufferError("full"), SendError, "asking: full"),
        (bridge.TopicSetupError("no topic half"), SinkSetupError, "no topic half"),
        (bridge.InvalidMessageError("no", field="topic"), RowError, "no"),
        (REFUSED, SinkOptionError, "a kafka. option is refused: no such property"),
        (CommitInDoubtError("as it is"), CommitInDoubtError, "as it is"),
    ],
)
def test_failures_become_errors_of_the_sink(
    failure: Exception, error: type[SinkError], text: str
) -> None:
    """What tells by itself who must act keeps telling it; the rest is as the caller says."""
    with pytest.raises(SinkError) as told, failing_as(SendError, "asking"):
        raise failure
    assert type(told.value) is error
    assert str(told.value) == text
