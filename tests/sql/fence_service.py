"""An order service with a fence, a process of its own that dies at the step --die-at.

`python tests/sql/fence_service.py --url ...`. Its threads run block after block, as fast as they
can, the blocks of each key in order. It prints `ready` once it is started; on SIGUSR1 it begins no
more blocks, and prints `quiet`; it answers checks until SIGTERM. Its client log has what it sends
and answers, a log beside it how each block ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from sqlalchemy import Connection, event, insert, select
from sqlalchemy.exc import SQLAlchemyError

from halfbridge.bridge import (
    Answer,
    BridgeError,
    Message,
    MessageView,
    NoAnswerError,
    OutcomeUnknownError,
    Resolution,
    Transaction,
    TransactionProducer,
)
from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.serde.records import OpKind
from halfbridge.testkit.history import ClientLog
from tests.kit.load import PRODUCER_GROUP, REAL_TOPICS, TICK_S, live, parser_of
from tests.sql.fence_plan import ITEMS, SHIPPED, Kind, Step, draw_kind, kinds_on
from tests.sql.fence_troubles import Engines, Rival
from tests.sql.on_a_loop import OnALoop

KEYS = 3  # per thread at a time
MESSAGES_MAX = 4
_MANY = (Kind.SEVERAL, Kind.AROUND, Kind.BEHIND)
SIGNAL_S_MAX = 60.0  # how long a block waits for a check, on a busy machine
ANY_S_MAX = 0.3
POLL_S = 0.01
RETRY_PAUSE_S = 0.2  # pause after a failure of the database or of Kafka
# Folders with a file per transaction: a check was answered; one got no answer; an op decides it.
ANSWERED, UNANSWERED, DECIDED = "answered", "unanswered", "decided"


# Whether the block of this lane is being left; tasks that a lane begins see it, too.
IS_LEAVING: ContextVar[bool] = ContextVar("is_leaving", default=False)


class BrokenError(Exception):
    """An error in a block that the service itself raises."""


class TakenBeforeError(BrokenError):
    """The inbox already has the mark of the block's message."""


class Doom:
    """Kills the process at one step, once it has begun `blocks` blocks."""

    def __init__(self, step: Step | None, blocks: int) -> None:
        self._step = step
        self._left = blocks
        self._lock = threading.Lock()

    def block(self, draw: random.Random) -> None:
        """Count a block that begins."""
        with self._lock:
            self._left -= 1
        if self._left == 0 and self._step is Step.ANY:
            threading.Timer(draw.uniform(0, ANY_S_MAX), _die).start()

    def at(self, step: Step) -> None:
        """Die, if this is the step and enough blocks have begun."""
        if step is self._step and self._left <= 0:
            _die()


class Checker:
    """Answers checks, and records each answer before it returns it."""

    def __init__(self, answer: Callable[[MessageView], Answer], log: ClientLog, to: Path) -> None:
        self._answer = answer
        self._log = log
        self._to = to

    def __call__(self, view: MessageView) -> Answer:
        """Return the answer; record it, or that there is none, for blocks that wait for it."""
        try:
            answer = self._answer(view)
        except NoAnswerError:
            self.unanswered(view)
            raise
        self.answering(view, answer)
        return answer

    def unanswered(self, view: MessageView) -> None:
        """Record that there is no answer."""
        (self._to / UNANSWERED / view.transaction_id).touch()

    def answering(self, view: MessageView, answer: Answer) -> None:
        """Record the answer."""
        self._log.answering(view.transaction_id, OpKind(answer.resolution.value))
        (self._to / ANSWERED / view.transaction_id).touch()


class Lane:
    """One thread of the service, and the keys whose blocks it runs in order."""

    def __init__(self, service: Service, number: int) -> None:
        options = service.options
        self._service = service
        self._number = number
        self._name = f"{options.name}-{number}"
        self._draw = random.Random(f"{self._name}:{options.seed}")
        self._first_item = ITEMS * (service.options.first_lane + number)
        self._generation = 0
        self._numbers: dict[str, int] = {}
        self._taken = 0  # messages of this process; its successor takes them all again

    def run(self) -> None:
        """Run blocks until `quiet` is set, or as many as --blocks says."""
        for number in count(1):
            if self._service.quiet.is_set() or 0 < self._service.options.blocks < number:
                return
            self._service.doom.block(self._draw)
            ended = self._block(self._kind(number))
            # A block in doubt is decided later: no other block of its key may follow.
            self._generation += isinstance(ended, OutcomeUnknownError)
            if isinstance(ended, (SQLAlchemyError, BridgeError)):
                self._service.quiet.wait(RETRY_PAUSE_S)

    def _kind(self, number: int) -> Kind:
        """Return the kind of the thread's block of this number, from 1."""
        options, database = self._service.options, self._service.engines.name
        if options.only:
            return Kind[options.only]
        first = kinds_on(database)[self._number :: options.threads] if options.each_first else []
        if number <= len(first):
            return first[number - 1]
        return draw_kind(self._draw, database, is_brief=options.brief)

    def _block(self, kind: Kind) -> BaseException | None:
        """Run one block; return what it raised."""
        service = self._service
        key = f"{self._name}-{self._generation}-{self._draw.randrange(KEYS)}"
        if kind is Kind.TAKEN:  # the threads of a service take the same messages
            key = f"taken-{service.options.first_lane}-{self._taken}"
        messages = self._draw.randint(2, MESSAGES_MAX) if kind in _MANY else 1
        early = {Kind.AROUND: 1, Kind.BEHIND: 0}.get(kind, messages)
        rival = Rival(service.engines, kind, self._first_item, ITEMS - 2)
        tx = None
        ended: BaseException | None = None
        try:
            rival.prepare()
            begin = service.naive if service.options.naive else service.fenced
            with begin(kind) as (tx, connection):
                service.doom.at(Step.BEGUN)
                rows = self._rows(tx, key, messages)
                self._send(tx, rows[:early], kind)
                service.doom.at(Step.SENT)
                if kind is Kind.LATE:
                    service.wait_for(service.options.late_behind, tx.id)
                if kind is Kind.TAKEN and not service.take(connection, key):
                    raise TakenBeforeError
                self._work(kind, connection, rows, rival)
                service.doom.at(Step.WORKED)
                self._send(tx, rows[early:], kind)
                if kind is Kind.SLOW:
                    service.wait_for(UNANSWERED, tx.id)
                service.doom.at(Step.ENTERED)
                _leave(kind)
                IS_LEAVING.set(True)
        except (SQLAlchemyError, BridgeError, IllegalTransitionError, BrokenError) as error:
            ended = error
        finally:
            IS_LEAVING.set(False)
            rival.end()
        if tx is not None:
            service.note(tx.id, kind, ended)
        if kind is Kind.TAKEN and (ended is None or isinstance(ended, TakenBeforeError)):
            self._taken += 1  # after any other error it takes the message again
        if ended is None:
            service.doom.at(Step.ENDED)
        return ended

    def _rows(self, tx: Transaction, key: str, messages: int) -> list[dict[str, Any]]:
        """Return rows of new messages."""
        rows = []
        for index in range(messages):
            topic = self._service.options.prefix + self._draw.choice(REAL_TOPICS)
            number = self._numbers[key] = self._numbers.get(key, 0) + 1
            value = f"{key}:{number}:{tx.id}"
            rows.append(
                {
                    "transaction_id": tx.id,
                    "message_index": index,
                    "topic": topic,
                    "order_key": key,
                    "number": number,
                    "value": value,
                }
            )
        return rows

    def _send(self, tx: Transaction, rows: list[dict[str, Any]], kind: Kind) -> None:
        """Send the messages of rows."""
        log = self._service.log
        for row in rows:
            index, topic, value = row["message_index"], row["topic"], row["value"].encode()
            key = row["order_key"].encode()
            log.sending(tx.id, index, topic=topic, key=key, value=value, label=kind.value)
            tx.send(Message(topic, key=key, value=value))
            log.sent(tx.id, index)

    def _work(
        self, kind: Kind, connection: Connection, rows: list[dict[str, Any]], rival: Rival
    ) -> None:
        try:
            connection.execute(insert(SHIPPED), rows)
            rival.meddle(connection)
        except SQLAlchemyError:
            rival.release()
            raise


class Service:
    """Engines, producer, logs, and the Doom that kills the process."""

    def __init__(self, options: argparse.Namespace, engines: Any = None) -> None:
        self.options = options
        self.engines = engines or Engines(options.url, PRODUCER_GROUP)
        self.quiet = threading.Event()
        self.doom = Doom(Step[options.die_at] if options.die_at else None, options.die_in)
        name = f"{options.name}.jsonl"
        self.log = ClientLog(options.directory / f"client-{name}", producer_group=PRODUCER_GROUP)
        self._blocks = os.open(
            options.directory / f"blocks-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        check = self._check_naively if options.naive else self.engines.fence.check
        checker = Checker(check, self.log, options.directory)
        settings: dict[str, Any] = {
            "bootstrap_servers": options.bootstrap_servers,
            "topic_prefix": options.prefix,
            "topics": [options.prefix + topic for topic in REAL_TOPICS],
        }
        self.producer: Any
        if options.asyncio:
            self.producer = OnALoop(
                options.url, options.asyncio, PRODUCER_GROUP, checker, **settings
            )
        else:
            self.producer = TransactionProducer(
                checker=checker, producer_group=PRODUCER_GROUP, **settings
            )
        used = {self.engines.fence_of(kind).engine for kind in Kind}
        for engine in used | ({self.producer.engine} if options.asyncio else set()):
            event.listen(engine, "checkin", self._on_checkin)
            event.listen(engine, "commit", self._on_commit)

    def run(self) -> None:
        """Run blocks until `quiet` is set; return when all have ended."""
        lanes = [Lane(self, number) for number in range(self.options.threads)]
        threads = [threading.Thread(target=lane.run) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(TICK_S)

    def fenced(self, kind: Kind) -> Any:
        """Return a block of the fence."""
        if self.options.asyncio:
            return self.producer.block()
        return self.engines.fence_of(kind).transaction(self.producer)

    def take(self, connection: Any, key: str) -> bool:
        """Mark a message as taken; return whether it was new."""
        if self.options.asyncio:
            return bool(self.producer.once(connection, key))
        return self.engines.inbox.once(connection, None, key)

    @contextmanager
    def naive(self, kind: Kind) -> Iterator[tuple[Transaction, Connection]]:
        """Yield a block without a fence row: sends, database transaction, COMMIT."""
        del kind
        with self.producer.begin() as tx, self.engines.usual.begin() as connection:
            yield tx, connection

    def wait_for(self, folder: str, transaction_id: str) -> None:
        """Return once the transaction has a file in `folder`, at `quiet`, or after SIGNAL_S_MAX."""
        path = self.options.directory / folder / transaction_id
        deadline = monotonic() + SIGNAL_S_MAX
        while not path.exists() and monotonic() < deadline:
            if self.quiet.wait(POLL_S):
                return

    def note(self, transaction_id: str, kind: Kind, ended: BaseException | None) -> None:
        """Log how a block ended."""
        outcome = getattr(ended, "outcome", None)
        line = {
            "tx": transaction_id,
            "kind": kind.name,
            "ended": type(ended).__name__ if ended is not None else "",
            "is_in_doubt": isinstance(ended, OutcomeUnknownError),
            "outcome": outcome.value if outcome is not None else "",
            "text": " ".join(str(ended).split())[:300] if ended is not None else "",
        }
        os.write(self._blocks, json.dumps(line).encode() + b"\n")

    def _on_commit(self, _: object) -> None:
        """Die, if this step is drawn, after the block's own last statement."""
        if IS_LEAVING.get():
            self.doom.at(Step.COUNTED)

    def _on_checkin(self, *_: object) -> None:
        """Die, if this step is drawn, as a connection returns to the pool, between the COMMITs."""
        if IS_LEAVING.get():
            self.doom.at(Step.COMMITTED)

    def _check_naively(self, view: MessageView) -> Answer:
        """Answer as checkers often do: work that is not found has failed."""
        query = select(SHIPPED.c.message_index).where(
            SHIPPED.c.transaction_id == view.transaction_id
        )
        with self.engines.usual.connect() as connection:
            is_there = connection.execute(query).first() is not None
        return Answer(Resolution.COMMIT if is_there else Resolution.ROLLBACK)


def _leave(kind: Kind) -> None:
    if kind is Kind.LEFT:
        raise BrokenError


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(raised: threading.ExceptHookArgs) -> None:
    """End with an error: a service that continues with fewer threads would hide it."""
    traceback.print_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("fence_service")
    parser.add_argument("--url", required=True)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--first-lane", type=int, default=0, help="threads of other services")
    parser.add_argument("--die-at", default="", help="name of a step")
    parser.add_argument("--die-in", type=int, default=0, help="blocks until then")
    parser.add_argument("--blocks", type=int, default=0, help="of a thread; 0: no limit")
    parser.add_argument("--only", default="", help="name of a kind")
    parser.add_argument("--each-first", action="store_true", help="begin with one of each kind")
    parser.add_argument("--brief", action="store_true", help="no blocks that wait for a check")
    parser.add_argument("--late-behind", default=ANSWERED, help="what the kind LATE waits for")
    parser.add_argument("--asyncio", default="", help="blocks of AsyncFence, by this driver")
    parser.add_argument("--naive", action="store_true", help="without a fence")
    return parser.parse_args(arguments)


def main(
    arguments: Sequence[str], new_service: Callable[[argparse.Namespace], Service] = Service
) -> int:
    """Run blocks until SIGUSR1, answer checks until SIGTERM."""
    options = _parse(arguments)
    for folder in (ANSWERED, UNANSWERED, DECIDED):
        with suppress(FileExistsError):
            (options.directory / folder).mkdir()
    service = new_service(options)
    threading.excepthook = _fail
    live(service.producer, service.run, service.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
