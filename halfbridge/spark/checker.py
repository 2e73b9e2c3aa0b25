"""Answers checks about the Spark sink's transactions from the manifest topic.

In the driver process, during the query:

    with SinkResponder(bootstrap_servers="...", app_id="orders-feed"):
        query.awaitTermination()

or as a separate process, `halfbridge spark responder`, which also settles the transactions of a
driver that is not started again. Any number of responders may run.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from halfbridge import environment
from halfbridge.bridge import NoAnswerError, Resolution, TransactionProducer
from halfbridge.kafka.threads import locked
from halfbridge.serde.avro import SINK_CONTEXT
from halfbridge.serde.records import OpSource
from halfbridge.serde.settings import load, setting
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.manifest import AttemptOutcome
from halfbridge.spark_jobs.sink.options import SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import sink_process
from halfbridge.spark_jobs.sink.sender import read_signer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from halfbridge.bridge import CheckCounts, MessageView
    from halfbridge.serde.records import SinkContext
    from halfbridge.spark_jobs.sink.manifest import BatchState
    from halfbridge.spark_jobs.sink.process import SinkProcess

# Batches that are remembered: those of an hour at one a second.
_KNOWN_MAX = 3_600
# Time between two searches of the log for one undecided batch: each of its
# transactions is asked about, and a search may read much. Far below the time until the next check.
_OPEN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """The setting that a responder reads from the environment if the caller gives no key file."""

    key_file: str = setting("", doc="The sink's option key.file; without it nothing is signed.")


class StillOpenError(NoAnswerError):
    """The batch is not decided yet. The daemon asks again; this does not count as an answer."""


class NotOfTheSinkError(NoAnswerError):
    """The half message does not say which batch it belongs to; its sender must be asked."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The last known state of a batch."""

    state: BatchState  # a winner is without its transactions, which are all decided
    searched_at: float  # when the log was searched, monotonic seconds


class SinkChecker:
    """A checker for TransactionProducer. Thread-safe; one question at a time.

    Answers from the manifest topic: listed, COMMIT; a manifest of the batch without it, ROLLBACK.
    Without a manifest it raises StillOpenError, which the daemon does not count, so that no number
    of checks gives up a batch whose driver merely is down. Half messages older than `age_ms_max`
    are given up by a record in the same log, which a commit that comes later finds and obeys.

    Before the first COMMIT of a batch it writes all decisions of its manifest, in order: answers
    to single checks alone would let a later chunk of rows overtake an earlier one.

    Args:
        options: The sink's; `age_ms_max`, milliseconds, is the option batch.age.max.ms.
        process: The clients; None: those that all sinks of this process share.
    """

    def __init__(self, options: SinkOptions, process: SinkProcess | None = None) -> None:
        self._options = options
        self._process = process or sink_process()
        self._clock = self._process.ports.clock
        self._lock = self._process.ports.run.waker()
        self._known: OrderedDict[tuple[str, int], _Known] = OrderedDict()

    def __call__(self, view: MessageView) -> Resolution:
        """Answer a check.

        Raises:
            StillOpenError, NotOfTheSinkError, SinkError: there is no answer, which does not count
                as one; the daemon asks again.
        """
        if view.context is None:
            raise NotOfTheSinkError(f"{view.transaction_id} has no RMQ_CONTEXT")
        context = SINK_CONTEXT.decode(view.context)
        with locked(self._lock):
            return self._resolve(context, age_ms=self._clock.time_ms() - view.born_timestamp)

    def _resolve(self, context: SinkContext, *, age_ms: int) -> Resolution:
        is_old = age_ms > self._options.age_ms_max
        known = self._known.get((context.app_id, context.batch_id))
        fate = AttemptOutcome.OPEN if known is None else known.state.fate(context.attempt_id)
        is_fresh = known is not None and self._clock.monotonic() - known.searched_at < _OPEN_S
        if fate is AttemptOutcome.OPEN and (is_old or not is_fresh):
            fate = self._search(context, is_old=is_old)
        if fate is AttemptOutcome.OPEN:
            raise StillOpenError(
                f"batch {context.batch_id} of {context.app_id} has no manifest yet: its driver runs"
                " it, or is down; restarted it decides"
            )
        return Resolution.COMMIT if fate is AttemptOutcome.COMMIT else Resolution.ROLLBACK

    def _search(self, context: SinkContext, *, is_old: bool) -> AttemptOutcome:
        options = replace(self._options, app_id=context.app_id)
        committer = BatchCommitter(options, self._process)
        state = committer.find(context.batch_id).state
        if is_old and state.fate(context.attempt_id) is AttemptOutcome.OPEN:
            reason = f"nobody committed it within {self._options.age_ms_max} ms"
            state = committer.reject(context.batch_id, context.attempt_id, reason).state
        if state.winner is not None:
            committer.decide_all(state.winner.manifest, source=OpSource.CHECK)
        batch = (context.app_id, context.batch_id)
        self._known[batch] = _Known(state.without_transactions(), self._clock.monotonic())
        self._known.move_to_end(batch)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return state.fate(context.attempt_id)


class SinkResponder:
    """Answers the checks of one app's sink, in threads of this process, while it is entered.

    Args:
        bootstrap_servers: The cluster, `host:port`, separated by commas.
        app_id: The sink's option app.id.
        producer_group: The sink's option producer.group; empty: spark-<app_id>.
        prefix: Prefix of the installation's internal topics.
        age_ms_max: The sink's option batch.age.max.ms; None: its default.
        kafka: More librdkafka properties, such as security settings.
        key_file: The sink's option key.file; None: HALFBRIDGE_KEY_FILE of this host.

    Raises:
        SinkOptionError: a setting is wrong, or the key file cannot be used; the caller corrects it.
        BridgeError: when entered: topics are missing or no broker answers; an operator follows the
            text.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        app_id: str,
        producer_group: str = "",
        prefix: str = "",
        age_ms_max: int | None = None,
        kafka: Mapping[str, str] | None = None,
        key_file: str | None = None,
    ) -> None:
        if key_file is None:
            key_file = load(KeyFile, environ=environment.variables()).key_file
        given = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "app.id": app_id,
            "halfbridge.prefix": prefix,
            "check.immunity.ms": "0",  # it sends nothing
            "key.file": key_file,
            **({"producer.group": producer_group} if producer_group else {}),
            **({"batch.age.max.ms": str(age_ms_max)} if age_ms_max is not None else {}),
            **{f"kafka.{name}": value for name, value in (kafka or {}).items()},
        }
        self.options = parse_options(given)
        # Before a broker is asked, so that a wrong key file fails at once.
        read_signer(self.options, self.options.producer_group, sink_process().ports.clock.time_ms())
        self._producer = TransactionProducer(
            checker=SinkChecker(self.options),
            bootstrap_servers=self.options.bootstrap_servers,
            producer_group=self.options.producer_group,
            topic_prefix=self.options.prefix,
            key_file=self.options.key_file,
            kafka=dict(self.options.kafka),
        )

    def counts(self) -> CheckCounts:
        """Return the counts of the checks that were requested and answered so far."""
        return self._producer.check_counts()

    def __enter__(self) -> Self:
        self._producer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._producer.close()
