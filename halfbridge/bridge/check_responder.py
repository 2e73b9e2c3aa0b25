"""Answers the daemon's checks: runs the user's checker and writes the answer as an op.

One thread consumes the group's check topic and never waits for a checker, a bounded pool runs the
checker, and one thread writes the answers in batches. A request that fails is counted and left
unanswered: the daemon asks again. While all threads of a member hang, it leaves its group, so that
other members are asked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.check_pool import CheckPool, CheckTally, HungCheckers, Tracebacks
from halfbridge.bridge.check_requests import CheckRequests
from halfbridge.bridge.message import Answer, MessageView, Resolution, view_of
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import OncePerName, log_safely, safe_repr
from halfbridge.kafka.errors import BridgeError
from halfbridge.logs import about
from halfbridge.serde.avro import CHECK_REQUEST, OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import CHECK, headers_of
from halfbridge.serde.protocol import NO_CHECK
from halfbridge.serde.records import COUNT_UNKNOWN, NO_OFFSET, Op, OpKind, OpSource
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.check_pool import CheckCounts, Outcome, Pool
    from halfbridge.bridge.shared import Shared
    from halfbridge.kafka.ports import ClientError, Clock, Ports, Record, Running, SentRecord
    from halfbridge.serde.records import CheckRequest

_LOG = logging.getLogger("halfbridge.bridge")
_OVERDUE_PAUSE_S = 0.1  # how late it is noticed that a checker is overdue
_BACK_OFF_S = 1.0  # after an error, so that a broker that is down costs one line a second
_STOP_S = 2.0  # checkers that run may end, as a fence's, which waits 2 s for a lock


@dataclass(frozen=True, slots=True)
class _Check:
    request: CheckRequest
    view: MessageView


class CheckResponder:
    """Answers checks for one producer until it is stopped; no exception ends it."""

    def __init__(
        self,
        shared: Shared,
        checker: Callable[[MessageView], Resolution | Answer],
        ports: Ports,
        *,
        knows: Callable[[str], bool],
        on_hung: Callable[[CheckCounts], object] | None = None,
        new_pool: Callable[..., Pool[Any]] = CheckPool,
    ) -> None:
        config = shared.config
        self._shared = shared
        self._ports = ports
        self._knows = knows
        self._tally = CheckTally()
        self._shared_group = SharedGroup(config.producer_group, ports.clock)
        self._tracebacks = Tracebacks(ports.clock)  # the answering thread's
        self._lock = Lock()  # guards _busy, and nothing waits while it is held
        self._busy: set[tuple[str, int]] = set()
        self._stopping = ports.run.event()
        self._pool: Pool[_Check] = new_pool(
            lambda check: checker(check.view),
            ports,
            threads=config.check_threads,
            hung_max=config.check_hung_max,
            queue_max=config.check_queue_max,
            timeout_s=config.check_timeout_ms / MS_PER_S,
        )
        self._hung = HungCheckers(
            config.producer_group, ports.run, counts=self.counts, listener=on_hung
        )
        # The consuming thread's, once that runs.
        self._requests = CheckRequests(
            shared, ports, on_unreadable=partial(self._tally.add, "unreadable")
        )
        self._consuming: Running | None = None
        self._answering: Running | None = None

    def start(self) -> None:
        """Start to consume and answer. ConfigError: the user corrects the consumer's settings."""
        self._requests.join()
        self._pool.start()
        self._answering = self._ports.run.start(self._answer, "halfbridge-answers")
        self._consuming = self._ports.run.start(self._consume, "halfbridge-checks")

    def stop(self) -> None:
        """Leave the group, let running checkers finish for a moment, write their answers."""
        self._stopping.set()
        if self._consuming is not None:
            self._consuming.join()
        self._pool.stop(_STOP_S)
        if self._answering is not None:
            self._answering.join()

    def counts(self) -> CheckCounts:
        """Return the counts so far, and how many checkers hang."""
        pool = self._pool.state()
        return self._tally.counts(hung=pool.hung, timed_out=pool.timed_out, replaced=pool.replaced)

    def _consume(self) -> None:
        while not self._stopping.is_set():
            try:
                self._take_turn()
            except BaseException:  # noqa: BLE001, PERF203  (nothing ends the responder)
                log_safely(_LOG.exception, "reading checks failed; retrying with a new consumer")
                self._tally.add("errors")
                self._requests.leave()
                self._stopping.wait(_BACK_OFF_S)
        self._requests.leave()

    def _take_turn(self) -> None:
        pool = self._pool.state()
        self._hung.check(pool, self._ports.clock.monotonic())
        if pool.able:
            self._take(self._requests.read())
        else:
            self._stand_aside()
        self._shared.ends.hear()

    def _stand_aside(self) -> None:
        """Leave the group while no thread can run a checker, so that other members are asked."""
        if self._requests.has_joined:
            self._tally.add("departures")
            self._requests.leave()
            dropped = self._pool.drop_waiting()
            with self._lock:
                self._busy.difference_update(_key(check.request) for check in dropped)
            self._tally.add("refused", len(dropped))
        self._stopping.wait(_BACK_OFF_S)

    def _take(self, records: list[Record]) -> None:
        newest: dict[tuple[str, int], _Check] = {}
        for record in records:
            error = record.error()
            if error is not None:
                self._tally.add("errors")
                where = f"{record.topic()}[{record.partition()}]@{record.offset()}"
                log_safely(_LOG.warning, "reading checks: %s: %s", where, failure_of(error))
                continue
            check = self._decoded(record)
            if check is None:
                continue
            key = _key(check.request)
            known = newest.get(key)
            if known is not None:
                self._tally.add("superseded")
            if known is None or _recency(check.request) >= _recency(known.request):
                newest[key] = check
        for key, check in newest.items():
            self._submit(key, check)

    def _decoded(self, record: Record) -> _Check | None:
        self._tally.add("received")
        try:
            headers = headers_of(record) or []
            raw = next((value for name, value in reversed(headers) if name == CHECK), None)
            request = CHECK_REQUEST.decode(raw or b"")
        except DecodeError as error:
            self._tally.add("undecodable")
            where = f"{record.topic()}[{record.partition()}]@{record.offset()}"
            log_safely(_LOG.warning, "check request %s skipped: %s", where, error.reason)
            return None
        shared = self._shared
        if request.producer_group != shared.producer_group or not self._knows(request.real_topic):
            self._tally.add("foreign")
            self._shared_group.note(request)
            return None
        if not 0 <= request.half_partition < shared.partitions:
            self._tally.add("undecodable")
            return None
        return _Check(request, view_of(request, record, headers))

    def _submit(self, key: tuple[str, int], check: _Check) -> None:
        with self._lock:
            if key in self._busy:
                self._tally.add("superseded")
                return
            self._busy.add(key)
        if self._pool.submit(check):
            return
        with self._lock:
            self._busy.discard(key)
        self._tally.add("refused")
        warn = partial(_LOG.warning, extra=about(transaction_id=key[0]))
        log_safely(warn, "check of %s refused: check_queue_max requests wait already", key[0])

    def _answer(self) -> None:
        for batch in self._pool.outcomes(pause_s=_OVERDUE_PAUSE_S):
            with self._lock:
                self._busy.difference_update(
                    _key(outcome.task.request) for outcome in batch if not outcome.is_overdue
                )
            try:
                self._write(batch)
            except BaseException:  # noqa: BLE001  (nothing ends the responder)
                log_safely(_LOG.exception, "writing answers failed; the daemon asks again")

    def _write(self, batch: list[Outcome[_Check]]) -> None:
        # Each batch asks once for each partition's end, after every checker of the batch returned.
        # So the end covers all half messages whose local transaction a checker could see committed.
        ends = self._ends([outcome.task.request for outcome in batch])
        for outcome in batch:
            request = outcome.task.request
            end = ends[request.half_partition]
            # An answer must cover all messages of its transaction. A deposed leader may report an
            # end that is too low.
            if end < covered(request):
                self._tally.add("unwritten")
                continue
            op = answer_to(
                request,
                outcome,
                half_offset=end,
                now_ms=self._shared.time_ms(),
                actor=self._shared.actor,
                timeout_ms=self._shared.config.check_timeout_ms,
                traceback=self._tracebacks.chosen(outcome.error),
            )
            self._tally.add("answered" if op.check_number else "failed")
            self._produce(op, request.half_partition)

    def _ends(self, requests: list[CheckRequest]) -> dict[int, int]:
        """Return the last offset of each half partition; NO_OFFSET where it is not known."""
        least: dict[int, int] = {}
        for request in requests:
            partition = request.half_partition
            least[partition] = max(covered(request), least.get(partition, 0))
        return {partition: self._half_end(partition, offset) for partition, offset in least.items()}

    def _half_end(self, partition: int, at_least: int) -> int:
        try:
            end = self._shared.ends.half_end(partition, at_least=at_least)
        except BridgeError as error:
            log_safely(
                _LOG.warning, "checks of half partition %d stay unanswered: %s", partition, error
            )
            return NO_OFFSET
        if end < at_least:
            text = "checks of half partition %d beyond %d, where it is said to end, stay unanswered"
            log_safely(_LOG.warning, text, partition, end)
        return end

    def _produce(self, op: Op, partition: int) -> None:
        shared = self._shared
        key, value = op.transaction_id.encode(), OP.encode(op)
        try:
            signer = shared.signer
            headers = None if signer is None else signer.op(partition, key, value, op.timestamp)
            shared.produce(
                shared.op_topic,
                value,
                key,
                partition,
                self._written,
                headers=headers,
            )
            shared.server.sent_once()
        except BridgeError as error:
            self._tally.add("unwritten")
            warn = partial(_LOG.warning, extra=about(transaction_id=op.transaction_id))
            log_safely(warn, "answer about %s not written: %s", op.transaction_id, error)

    def _written(self, error: ClientError | None, record: SentRecord) -> None:
        error = error or self._shared.not_proven(record)
        if error is not None:
            self._tally.add("unwritten")
            where = record.partition()
            failure = failure_of(error)
            log_safely(_LOG.warning, "answer to op partition %s not written: %s", where, failure)


def _key(request: CheckRequest) -> tuple[str, int]:
    return request.transaction_id, request.resume_count


def _recency(request: CheckRequest) -> tuple[int, int]:
    return request.check_number, request.attempt


_REASON_CHARS_MAX = 500  # of the text of an error or a return value; operators read the beginning


def answer_to(
    request: CheckRequest,
    outcome: Outcome[Any],
    *,
    half_offset: int,
    now_ms: int,
    actor: str,
    timeout_ms: int,
    traceback: BaseException | None = None,
) -> Op:
    """Return the op that answers a check.

    Only an explicit answer counts. Any other outcome is logged, and the op carries the reason.

    Args:
        request: The check.
        outcome: How the checker ended.
        half_offset: Last offset of the half partition, asked after the checker returned.
        now_ms: The time, ms since 1970.
        actor: Who answers.
        timeout_ms: Time that the checker had.
        traceback: The checker's exception, where the log is to have its traceback.
    """
    unknown = Op(
        transaction_id=request.transaction_id,
        timestamp=now_ms,
        half_offset=half_offset,
        resume_count=request.resume_count,
        producer_group=request.producer_group,
        kind=OpKind.UNKNOWN,
        message_count=COUNT_UNKNOWN,
        check_number=NO_CHECK,
        source=OpSource.CHECK,
        actor=actor,
        reason="",
    )
    answer = outcome.answer
    if isinstance(answer, Resolution):
        answer = Answer(answer)
    if isinstance(answer, Answer):
        kind, count = OpKind[answer.resolution.value], answer.message_count
        return unknown._replace(
            kind=kind,
            check_number=request.check_number,
            message_count=COUNT_UNKNOWN if count is None else count,
        )
    # Only an explicit UNKNOWN counts: a database that is down must not discard.
    if outcome.is_overdue:
        reason = f"checker still runs after {timeout_ms} ms"
    elif outcome.error is not None:
        reason = f"checker raised {safe_repr(outcome.error)}"
    else:
        reason = f"checker returned {safe_repr(answer)}, no Resolution"
    asked = about(transaction_id=request.transaction_id, producer_group=request.producer_group)
    warn = partial(_LOG.warning, exc_info=traceback, extra=asked)
    log_safely(warn, "check of %s: %s", request.transaction_id, reason)
    return unknown._replace(reason=reason[:_REASON_CHARS_MAX])


def covered(request: CheckRequest) -> int:
    """Return the lowest half offset that an answer may name."""
    return max(0, request.half_offset, request.last_half_offset)


# The same topic is logged again after this time, as in the daemon's reports. At most this many
# topics are logged, four lines a minute: any writer of check requests can invent names.
LOGGED_AGAIN_S = 300.0
TOPICS_MAX = 20


class SharedGroup:
    """Warns when a member is asked about a topic of its group that the member does not declare.

    Such a request is left to other members. Where two services share the group, it may have been
    meant for the other one: the daemon asks any member, and each attempt that meets the wrong
    service is lost. For one thread.
    """

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._now = clock.monotonic
        self._topics = OncePerName(LOGGED_AGAIN_S, TOPICS_MAX)

    def note(self, request: CheckRequest) -> None:
        """Take a request that is left to other members."""
        topic = request.real_topic
        if request.producer_group != self._group or not self._topics.is_due(topic, self._now()):
            return
        log_safely(
            _LOG.warning,
            "a check of transaction %s to topic %s came to this member of group %s, which does not"
            " declare that topic and leaves the check unanswered: where another service uses the"
            " group too, give each service a producer group of its own",
            request.transaction_id,
            topic,
            self._group,
        )
