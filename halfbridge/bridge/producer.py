"""TransactionProducer: users make one in each process."""

from __future__ import annotations

import atexit
import logging
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge import environment
from halfbridge.bridge.check_pool import CheckCounts, CheckPool, is_async
from halfbridge.bridge.check_responder import CheckResponder
from halfbridge.bridge.config import (
    BridgeConfig,
    admin_properties,
    refuse_unknown,
    writer_properties,
)
from halfbridge.bridge.delivery import Figures
from halfbridge.bridge.local_transaction import checked, decided, run
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.shared import Shared
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import (
    BridgeError,
    ConfigError,
    KafkaFailure,
    ProducerClosedError,
)
from halfbridge.kafka.ports import NewTopic
from halfbridge.kafka.threads import check_native_threads, locked
from halfbridge.kafka.topics import RealTopics, Topics
from halfbridge.serde.topics import CHECK_PARTITIONS, check_topic_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider
    from prometheus_client.registry import Collector
    from typing_extensions import Unpack

    from halfbridge.bridge.check_pool import Pool
    from halfbridge.bridge.client_metrics import Measured, Source
    from halfbridge.bridge.config import ClientSettings
    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.bridge.local_transaction import TransactionSendResult
    from halfbridge.bridge.message import (
        Answer,
        Message,
        MessageView,
        Resolution,
    )
    from halfbridge.bridge.tracing import OpenTelemetryTracing
    from halfbridge.kafka.ports import Ports
    from halfbridge.serde.topics import HalfShape

_LOG = logging.getLogger("halfbridge.bridge")
_ADMIN_TIMEOUT_S = 10.0  # longest wait of start() and send() for one answer: as send_timeout_ms
CLOSE_TIMEOUT_S = 10.0  # as send_timeout_ms: the records that were sent last have their time too


class TransactionProducer:
    """Sends messages that become visible only if their transaction is committed.

    Thread-safe: one producer serves all threads of a process, which then share its batches. Not
    fork-safe: make the producer in the process that uses it. A context manager: entering checks the
    topics and starts the check responder. So a restarted producer answers checks about undecided
    transactions of its predecessor before it sends anything.

    Args:
        checker: Called with a MessageView when a transaction of the group stays undecided, in a
            thread of its own; returns a Resolution, or an Answer, by looking at the local database.
            Any live member of the group may be asked about any transaction of the group. "No row"
            is UNKNOWN, unless answering ROLLBACK makes a late local commit fail. No `async def`. A
            checker that cannot tell now raises NoAnswerError.
        topics: Real topics that this producer may send to and is asked about; empty: any topic,
            checked at each send.
        on_hung: Called with CheckCounts while checkers run longer than check_timeout_ms, every 30 s
            and when no thread is left, and once when all have returned; in a thread of its own.
        on_decision_failed: Called with the DecisionFuture of a decision that failed and that no
            thread awaits; a check settles its transaction. Called in the thread that serves
            acknowledgements: it must not block. See `failed_decisions`.
        tracing: Makes OpenTelemetry's spans (`halfbridge.bridge.tracing`); None: there are none.
        config: Settings; None: the environment (HALFBRIDGE_BOOTSTRAP_SERVERS, ...), then defaults.
        ports: Kafka, clock and threads; None: the client library and the system.
        settings: Any field of BridgeConfig (bootstrap_servers, producer_group, ...); overrides
            `config` and the environment.

    Raises:
        ConfigError: a setting is wrong or missing; correct it. Nothing was sent.

    Source: RocketMQ 5 Producer with TransactionChecker, RocketMQ 4 TransactionMQProducer.
    """

    def __init__(
        self,
        *,
        checker: Callable[[MessageView], Resolution | Answer],
        topics: Sequence[str] = (),
        on_hung: Callable[[CheckCounts], object] | None = None,
        on_decision_failed: Callable[[DecisionFuture], object] | None = None,
        tracing: OpenTelemetryTracing | None = None,
        config: BridgeConfig | None = None,
        ports: Ports | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        check_arguments(checker, topics)
        self._config = configured(config, settings, environment.variables())
        self._checker = checker if tracing is None else tracing.checker(checker)
        self._new_transaction = Transaction if tracing is None else tracing.transaction
        self._tracing = tracing
        self._on_hung = on_hung
        self._on_decision_failed = on_decision_failed
        self._topics = tuple(topics)
        self._ports = system_ports() if ports is None else ports
        self._flushes_at_exit = ports is None  # other ports may have ended by then
        self._starting = self._ports.run.waker()
        self._shared: Shared | None = None
        self._responder: CheckResponder | None = None
        self._counts = CheckCounts()  # of a responder that was closed

    @property
    def config(self) -> BridgeConfig:
        """The settings in force."""
        return self._config

    def start(self) -> None:
        """Check the topics and start to answer checks; `with` calls this.

        Raises:
            ProducerClosedError, ForkedProcessError: closed, or made before a fork; make another.
            TopicSetupError: half, op, check or a bound topic is missing or has the wrong shape; an
                operator runs the command that the text names.
            ConfigError: the Kafka client refuses a property, perhaps for consumers only; or gevent
                or eventlet has patched `threading`. The user corrects it.
            BridgeError: the brokers do not answer; try again later.
        """
        check_native_threads()
        with locked(self._starting):
            if self._shared is not None:
                self._shared.check_open()
                return
            config, ports = self._config, self._ports
            half, round_trip_s = _check_installation(config, ports)
            writer = ports.kafka.writer(
                writer_properties(
                    config,
                    ports.clock,
                    message_bytes_max=half.record_bytes_max,
                    round_trip_s=round_trip_s,
                )
            )
            real_topics = RealTopics(
                config.names, writer, ports, bound=self._topics, timeout_s=_ADMIN_TIMEOUT_S
            )
            real_topics.check_bound()
            shared = Shared(
                config,
                writer,
                ports,
                half=half,
                real_topics=real_topics,
                on_decision_failed=self._on_decision_failed,
            )
            responder = CheckResponder(
                shared,
                self._checker,
                ports,
                knows=real_topics.knows,
                on_hung=self._on_hung,
                new_pool=self._new_pool,
            )
            responder.start()  # first: it may refuse the settings, and has no thread then
            shared.server.start()
            shared.daemon_limits.start()
            self._shared, self._responder = shared, responder
            if self._flushes_at_exit:
                _open.add(self)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop answering checks, wait for outstanding records, free everything; `with` calls this.

        Records without an acknowledgement after `timeout` seconds are in doubt; checks settle them.
        Idempotent.
        """
        with locked(self._starting):
            shared, responder = self._shared, self._responder
            self._counts, self._responder = self.check_counts(), None
        _open.discard(self)
        if shared is None or responder is None or shared.is_forked:
            return
        responder.stop()
        self._counts = responder.counts()
        left = shared.close(timeout)
        if left:
            _LOG.warning("producer closed with %d unacknowledged records; checks settle them", left)

    def begin(
        self,
        *,
        immunity_ms: int | None = None,
        context: bytes | None = None,
        placement_key: bytes | None = None,
        rollback_on: type[BaseException] | Iterable[type[BaseException]] = (),
    ) -> Transaction:
        """Return a new message transaction; many may be open at a time.

        Args:
            immunity_ms: Least age before the first check, milliseconds, for messages without an
                immunity of their own, at most `BridgeConfig.immunity_ms_max`; None: the daemon's
                transaction_timeout_ms.
            context: Shown to the checker as `MessageView.context`; never delivered. At most 4,096
                bytes.
            placement_key: Transactions with the same placement key are delivered in the order of
                their decisions, whatever keys their messages have; None: the first message's key.
            rollback_on: Exceptions that roll the transaction back when they leave its block: a
                class, or several. For a block with one local transaction, which each of them
                proves not to have committed. Any other exception decides nothing.

        Raises:
            InvalidMessageError: immunity or context is too long; nothing was begun; shorten it.
            TransactionsRejectedError: an operator stopped new transactions; repeat it later.
            ConfigError: a class of `rollback_on` may come after the local transaction has
                committed, such as OSError; nothing was begun. Name narrower classes.
            ProducerClosedError, ForkedProcessError: not started, closed, or made before a fork;
                start it, or make another.
        """
        shared = self._started()
        shared.check_open()
        shared.gate.check_begin(self._topics)
        if immunity_ms is not None:
            shared.check_immunity(immunity_ms)
        classes = checked(rollback_on) if rollback_on != () else ()
        return self._new_transaction(
            shared,
            immunity_ms=immunity_ms,
            context=context,
            rollback_on=classes,
            placement_key=placement_key,
        )

    @property
    def half_partitions(self) -> int:
        """Number of half partitions; messages keep their order if their keys share a partition.

        Raises:
            ProducerClosedError, ForkedProcessError: not started, closed, or made before a fork;
                start it, or make another.
        """
        return self._started().partitions

    def repeat_commit(
        self, transaction_id: str, *, half_partition: int, half_offset: int, message_count: int
    ) -> DecisionFuture:
        """Send COMMIT of a transaction that any member of the group has sent; returns at once.

        For a caller whose database proves that the local transaction has committed, and that does
        not know whether COMMIT was sent. The first decision wins: if that is COMMIT, this one is a
        duplicate; if it is another one, this one has no effect.

        Args:
            transaction_id: `Transaction.id`.
            half_partition: `SendReceipt.half_partition` of its messages.
            half_offset: The highest `SendReceipt.half_offset` among them.
            message_count: `Transaction.message_count`.

        Raises:
            InvalidMessageError: a number that no transaction can have; nothing was sent; correct
                it.
            BackpressureError: no room in time; repeat the call later.
            ProducerClosedError, ForkedProcessError: not started, closed, or made before a fork;
                start it, or make another.
        """
        again = Transaction.sent_by_another(
            self._started(),
            transaction_id=transaction_id,
            half_partition=half_partition,
            half_offset=half_offset,
            message_count=message_count,
        )
        return again.commit_async()

    def send_in_transaction(
        self,
        message: Message,
        local_transaction: Callable[[Message, Any], Resolution],
        arg: Any = None,
        *,
        timeout: float | None = None,
    ) -> TransactionSendResult:
        """Send a half message, run the local transaction in this thread, deliver its decision.

        Args:
            message: Sent first; the local transaction runs only once the message is durable.
            local_transaction: Called with `message` and `arg`; returns a Resolution. An exception
                is UNKNOWN, and so is None: nothing is decided, and a check asks later.
            arg: Passed to `local_transaction`.
            timeout: Seconds for each acknowledgement; None: as configured.

        Returns:
            The result of the local transaction, and the position of the decision or why that is not
            known. Only TypeError is raised once the local transaction has run.

        Raises:
            TypeError: the local transaction returned neither a Resolution nor None; nothing was
                decided, and the check asks later. Correct what it returns.
            HalfNotStoredError: no ack; the local transaction did not run; repeat the call later. A
                check settles a message that was stored nevertheless.
            BridgeError: as `Transaction.send`; nothing was sent.

        Source: RocketMQ 4 TransactionMQProducer.sendMessageInTransaction.
        """
        transaction = self.begin()
        receipt = transaction.send(message, timeout)
        if self._tracing is not None:
            local_transaction = self._tracing.local_transaction(transaction, local_transaction)
        outcome = run(local_transaction, message, arg)
        return decided(transaction, receipt, outcome, timeout)

    def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> int:
        """Wait until nothing is unacknowledged; return how many records still are.

        Also waits for callbacks and for the decisions that callbacks send meanwhile. A callback
        that calls this waits for records only. `timeout` is in seconds.

        Raises:
            ProducerClosedError, ForkedProcessError: closed, or made before a fork; make another.
        """
        shared = self._shared
        if shared is None:
            return 0
        shared.check_open()
        return shared.server.flush(timeout)

    @property
    def failed_decisions(self) -> int:
        """How many decisions failed while no thread awaited them; checks settle them."""
        return 0 if self._shared is None else self._shared.failures.count

    def check_counts(self) -> CheckCounts:
        """Return the check responder's counts, and how many checkers hang."""
        responder = self._responder
        return self._counts if responder is None else responder.counts()

    def figures(self) -> Figures | None:
        """Return what this producer has done so far; None: not started, or made before a fork.

        Counts begin at 0 with `start`, and never fall; `in_flight` is of now.
        """
        shared = self._shared
        if shared is None or shared.is_forked:
            return None
        return Figures(
            outcomes=shared.outcomes.counts(),
            failed_decisions=shared.failures.count,
            in_flight=shared.in_flight,
            checks=self.check_counts(),
        )

    def collector(self, *others: Measured) -> Collector:
        """Return a collector of prometheus_client, for `REGISTRY.register`; registers nothing.

        A registry refuses a second collector of the same metrics, so one collector has the figures
        of all producers of a process: this one and the `others`, blocking and asynchronous.
        Under prometheus_client's multiprocess mode a thread copies the figures each second into the
        files of that mode; call this in each process, after the fork.
        """
        # Imported here: a service without metrics does not load prometheus_client.
        from halfbridge.bridge.client_metrics import (  # noqa: PLC0415
            ClientCollector,
            MultiprocessCollector,
            is_multiprocess,
        )

        sources = _sources(self, *others)
        if not is_multiprocess(environment.variables()):
            return ClientCollector(sources)
        collector = MultiprocessCollector(sources)
        follow = partial(collector.follow, self._ports.run.pause)
        self._ports.run.start(follow, "halfbridge-metrics")
        return collector

    def register_meters(
        self,
        *others: Measured,
        provider: MeterProvider | None = None,
    ) -> None:
        """Register the figures of this producer and the `others` as instruments of OpenTelemetry.

        Call it once in a process, as `collector`; the instruments live as long as the provider.

        Args:
            others: Further producers of this process, blocking and asynchronous.
            provider: None: the process's own, as the service has configured it.

        Raises:
            ModuleNotFoundError: opentelemetry-api is missing; the user installs what the text says.
        """
        # Imported here, as in `collector`.
        from halfbridge.bridge.client_metrics import register_meters  # noqa: PLC0415

        register_meters(_sources(self, *others), provider)

    def __enter__(self) -> TransactionProducer:  # noqa: PYI034  (Self came with 3.11)
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _new_pool(self, *work: Any, **limits: Any) -> Pool[Any]:
        """Return what runs the checker."""
        return CheckPool(*work, **limits)

    def _started(self) -> Shared:
        if self._shared is None:
            raise ProducerClosedError("this producer is not started; use `with` or start()")
        return self._shared


def _sources(*producers: Measured) -> list[Source]:
    return [(each.config.producer_group, each.figures) for each in producers]


# Producers that were not closed when the program ends.
_open: weakref.WeakSet[TransactionProducer] = weakref.WeakSet()
# Decisions in the queue need one round trip; a program that ends must not hang on a lost broker.
_EXIT_FLUSH_S = 2.0


@atexit.register
def _flush_at_exit() -> None:
    """Send the decisions that a program leaves in the queue when it ends without `close`."""
    for producer in tuple(_open):
        # Closed by another thread, made before a fork, or its client has failed for good.
        with suppress(BridgeError, KafkaFailure):
            left = producer.flush(_EXIT_FLUSH_S)
            if left:
                _LOG.warning(
                    "the program ends with %d unacknowledged records; checks settle them", left
                )


def check_arguments(checker: Callable[..., object], topics: Sequence[str]) -> None:
    """Check that `checker` can be called and `topics` is a list of names.

    Raises ConfigError: the programmer corrects them.
    """
    if not callable(checker):
        allowed = "a callable that takes a MessageView and returns a Resolution"
        raise _refused("checker", checker, allowed)
    if is_async(checker):
        raise _refused(
            "checker", checker, "a plain function: an `async def` needs AsyncTransactionProducer"
        )
    if isinstance(topics, str) or not all(isinstance(topic, str) for topic in topics):
        raise _refused("topics", topics, "a list of names")


def configured(
    config: BridgeConfig | None, settings: ClientSettings, environ: Mapping[str, str]
) -> BridgeConfig:
    """Return the settings in force: `settings`, then `config` or `environ`, then defaults.

    Raises:
        ConfigError: a setting is wrong or missing; the user corrects it.
        TypeError: there is no such setting; the programmer corrects it.
    """
    if config is None:
        return BridgeConfig.from_environ(environ, **settings)
    refuse_unknown(settings)
    return replace(config, **settings)


def _refused(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=repr(value), origin="argument", allowed=allowed)


def _check_installation(config: BridgeConfig, ports: Ports) -> tuple[HalfShape, float]:
    """Check half, op and check topic; return the half topic's shape, and a round trip, seconds.

    Creates the group's check topic if it is missing and the client may create it.

    Raises:
        TopicSetupError: an operator runs the command in its text.
        BridgeError: the brokers do not answer; try again later.
    """
    admin = ports.kafka.admin(admin_properties(config, ports.clock))
    topics = Topics(admin, ports, config.names, remedy=_remedy(config), timeout_s=_ADMIN_TIMEOUT_S)
    half = topics.half_shape()
    check = config.names.check(config.producer_group)
    settings = check_topic_settings(half)
    topics.make_missing([NewTopic(check, CHECK_PARTITIONS, half.replicas, settings)])
    # The distance matters only where no number is given.
    return half, 0.0 if config.requests_in_flight_max else topics.round_trip_s()


def _remedy(config: BridgeConfig) -> str:
    prefix = f" --topic-prefix {config.topic_prefix}" if config.topic_prefix else ""
    return f"run: halfbridge topics create{prefix} --producer-group {config.producer_group}"
