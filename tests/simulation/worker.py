"""A worker in one process with everything else: the loop of checker/worker.py, step by step.

The ledger, the pair, the progress and the publisher are the real ones; consumer, producers and
admin client are the model's. It is a generator: at each `yield` others go on, it may be paused
for long, or it dies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.plan import Plan
from halfbridge.checker.core.progress import check_against_log
from halfbridge.checker.pair import Pair, restore_checks, restore_plan
from halfbridge.checker.publish import Publisher
from halfbridge.serde.progress import Progress, ProgressError, parse_progress
from tests.ledger_log import outcomes
from tests.simulation.group import Member, RefusedError
from tests.simulation.log import OutOfRangeError
from tests.simulation.settings import (
    BATCH_BYTES,
    IDLE_COMMIT_S,
    LEDGER,
    NAMES,
    SIZES,
    BrokenPromiseError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.broker import Offsets, Place, Row
    from tests.simulation.world import World

# As in checker/outlet.py.
COMMIT_RETRIES_MAX = 3
# How often stable offsets are asked for before the worker begins anew.
STABLE_TRIES_MAX = 20
# How many of what is there one turn reads; 0 stands for all.
READS = (1_000, 1_000, 0, 1, 1, 3)
# How many turns of the loop a barrier takes, about.
ROUND_TURNS = 8
BATCHES = (1_000, 1_000, 1, 4)


class KafkaTxnFailedError(Exception):
    """A kafka_txn did not happen, or may have happened."""


class InputLostError(Exception):
    """Read again from the committed offsets."""


class SlotTakenError(Exception):
    """Another incarnation runs on this slot: this one ends."""


class Producer:
    """A transactional producer.

    Attributes:
        worn: Its next kafka_txn must not begin: replace it.
        is_stuck: The client itself refuses to begin: the last end is still in doubt.
    """

    __slots__ = ("epoch", "is_stuck", "name", "worn")

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.worn = self.is_stuck = False


class Worker:
    """One incarnation of a worker slot."""

    def __init__(self, world: World, slot: int) -> None:
        self.world, self.broker, self.choices = world, world.broker, world.choices
        self.instance = f"worker-{slot}"
        self.count = 2 + self.choices.below(2)
        self.skew_ms = 0
        self.paused_until_ms = 0
        self.born_ms = world.now_ms
        self.member_id = self._join()
        self.member: Member | None = None
        self.assigned: tuple[int, ...] = ()
        self.changed = False
        self.pairs: dict[int, Pair] = {}
        self.producers: list[Producer] = []
        self.turn = 0
        self.work: list[tuple[Pair, Plan]] = []
        self.progress: dict[int, Progress] = {}
        self.under_way: Iterator[None] | None = None
        self._positions: dict[Place, int] = {}
        self._told_end: dict[Place, int] = {}
        self._questions: dict[Place, tuple[int, int | None]] = {}
        self.life = self._run()

    def step(self) -> bool:
        """Go on to the next point where others may come between; False when it has ended."""
        return next(self.life, False) is not False

    def _run(self) -> Iterator[None]:
        try:
            while True:
                try:
                    yield from self._turn()
                except InputLostError:
                    yield from self._settle()
                    self._recover()
                except KafkaTxnFailedError as error:
                    self.world.note(self.instance, "failed:", str(error))
                    self.under_way = None
                    self._discard_producers()
                    self._recover()
                yield
        except SlotTakenError:
            self.world.note(self.instance, "ends: its slot was taken")

    def _recover(self) -> None:
        self.pairs, self.work, self.changed = {}, [], True

    def _discard_producers(self) -> None:
        self.producers = []

    # --- one turn of the loop --------------------------------------------------------------

    def _turn(self) -> Iterator[None]:
        while len(self.producers) < self.count:
            self.producers.append(self._new_producer(len(self.producers)))
            yield
        self._poll()
        if self.changed:
            self.changed = False
            yield from self._settle()
            yield from self._start()
            return
        self._read()
        under_way = {pair.partition for pair, _ in self.work}
        for number, pair in self.pairs.items():
            pair.keep_bodies(is_written=number in under_way)
        self._take_answers()
        self._ask()
        if self.under_way is not None:
            if next(self.under_way, False) is not False:
                return
            self._committed()
        self._collect()
        if self.work:
            yield from self._transact()

    def _seconds(self) -> float:
        """Return its monotonic clock, which agrees with nobody else's."""
        return (self.world.now_ms - self.born_ms + self.skew_ms) / 1000

    def _poll(self) -> None:
        """Take what the group says, as the assignment callbacks do."""
        group = self.broker.group
        if group.is_fenced(self.instance, self.member_id):
            raise SlotTakenError
        if not group.is_member(self.instance):
            self.member_id = self._join()
        if self.member is None or (self.member.member_id, self.member.generation) != (
            self.member_id,
            group.generation,
        ):
            self.member = Member(self.instance, self.member_id, group.generation)
            self.assigned = group.assignment(self.instance)
            self.changed = True

    def _join(self) -> int:
        is_quiet = self.choices.below(2) == 0
        return self.broker.group.join(self.instance, self.world.now_ms, is_quiet=is_quiet)

    def _start(self) -> Iterator[None]:
        """Begin anew from committed offsets (checker/assignment.py)."""
        self.pairs, self._positions, self._told_end = {}, {}, {}
        places = [(topic, n) for n in self.assigned for topic in (NAMES.half, NAMES.op)]
        for _ in range(STABLE_TRIES_MAX):
            committed = self._fetch_offsets(places)
            if committed is not None:
                break
            yield
        else:
            raise InputLostError
        yield
        began = self._seconds()
        for number in self.assigned:
            half, op = (NAMES.half, number), (NAMES.op, number)
            ranges = [(self.broker.partitions[at].start, self.broker.partitions[at].end)
                      for at in (half, op)]  # fmt: skip
            try:
                progress = parse_progress(committed[half][0], *committed[op])
                progress = check_against_log(progress, *ranges)
            except ProgressError as error:
                self._accept_if_stale(f"partition {number} stopped: {error}")
                continue
            publisher = Publisher(NAMES, number, self.world.routes, SIZES)
            self.pairs[number] = Pair(number, LEDGER, progress, publisher, began=began)
            self._positions[half], self._positions[op] = progress.half, progress.ops_from
        self.world.note(self.instance, "starts", self.assigned)

    def _fetch_offsets(self, places: Iterable[Place]) -> dict[Place, tuple[int, str | None]] | None:
        return self.broker.fetch_offsets(places)

    # --- reading ---------------------------------------------------------------------------

    def _read(self) -> None:
        now = self._seconds()
        if self.choices.fault(self.world.rate // 4):
            raise InputLostError  # consume() failed: what it had taken is gone
        for number, pair in self.pairs.items():
            self._read_one((NAMES.half, number), pair.take_half, pair.ledger.half_read_to, now)
            self._read_one((NAMES.op, number), pair.take_op, pair.ledger.op_read_to, now)

    def _read_one(self, place: Place, take: Any, read_to: Any, now: float) -> None:
        partition, position = self.broker.partitions[place], self._positions[place]
        end = partition.lso
        if position >= end and self._told_end.get(place) == position:
            return
        limit = READS[self.choices.below(len(READS))]
        if not limit:
            return
        try:
            records, position = partition.read(position, limit)
        except OutOfRangeError as error:
            self._accept_if_stale(f"{self.instance} cannot read {error}")
            raise InputLostError from error
        self._positions[place] = position
        for record in records:
            take(record, now)
        if position >= end:
            self._told_end[place] = position
            read_to(position)

    def _bodies(self, number: int, offsets: Iterable[int]) -> dict[int, Any]:
        partition = self.broker.partitions[NAMES.half, number]
        try:
            return {offset: partition.read(offset, 1)[0][0] for offset in offsets}
        except OutOfRangeError as error:
            # Its copy holds it, and was not read back yet: a new ledger has the copy.
            self.world.note(self.instance, "cannot read a body again", str(error))
            raise InputLostError from error

    def _accept_if_stale(self, why: str) -> None:
        """Take an error that a member may meet which the group has left behind meanwhile."""
        self.world.note(why)
        if self.member is None:
            return
        try:
            self.broker.group.check(self.member)
        except RefusedError:
            return
        raise BrokenPromiseError(why)

    # --- questions (checker/asking.py) -----------------------------------------------------

    def _take_answers(self) -> None:
        for place, (token, end) in list(self._questions.items()):
            if end is None:
                self._questions[place] = token, self.broker.partitions[place].end
                continue
            if self.choices.fault(self.world.rate):
                continue  # the answer is under way
            if place[0] == NAMES.half and self.choices.below(ROUND_TURNS):
                continue  # a barrier is a kafka_txn: it takes a while
            del self._questions[place]
            pair = self.pairs.get(place[1])
            if pair is not None:
                told = pair.ledger.op_end if place[0] == NAMES.op else pair.ledger.half_end
                told(end, token)

    def _ask(self) -> None:
        now = self._seconds()
        for number, pair in self.pairs.items():
            now_ms, ledger = pair.now_ms(now), pair.ledger
            limit = BATCHES[self.choices.below(len(BATCHES))] if self._is_due(pair, now_ms) else 0
            checks = ledger.checks(now_ms, limit)
            for check in restore_checks(checks, partial(self._bodies, number)):
                request = pair.publisher.check(check, now_ms)
                if not self.choices.fault(self.world.rate):
                    self.world.append(
                        (request.topic, 0), request.key, request.value, request.headers
                    )
            if ledger.wants_op_end:
                self._questions.setdefault((NAMES.op, number), (now_ms, None))
            waiting = ledger.wants_half_end(int(now * 1000))
            if waiting is not None and (NAMES.half, number) not in self._questions:
                self._questions[NAMES.half, number] = waiting, self._barrier(number)

    def _barrier(self, number: int) -> int:
        """Append a record and abort it: it proves where half p ended (checker/barriers)."""
        partition = self.broker.partitions[NAMES.half, number]
        fate = partition.begin()
        offset = partition.append(None, b"barrier", None, self.world.now_ms, fate)
        partition.mark(fate, is_aborted=True)
        return offset

    def _is_due(self, pair: Pair, now_ms: int) -> bool:
        due_ms = pair.ledger.next_due_ms()
        return due_ms is not None and due_ms <= now_ms

    # --- kafka_txns ------------------------------------------------------------------------

    def _collect(self) -> None:
        now = self._seconds()
        self.work = []
        left = BATCHES[self.choices.below(len(BATCHES))]
        for pair in self.pairs.values():
            if left <= 0:
                return
            plan = pair.held or pair.ledger.plan(
                pair.now_ms(now), records_max=left, size_bytes_max=BATCH_BYTES
            )
            if not plan.records:
                plan = Plan()
                if not self._must_move(pair, now):
                    continue
            pair.held = plan
            if plan.deliveries and self.choices.below(5) == 1:
                pair.ledger.waits_full_ms += 1  # a real topic is missing: the plan waits, and pays
                continue
            left -= max(plan.records, 1)
            self.work.append((pair, plan))

    def _must_move(self, pair: Pair, now: float) -> bool:
        if not pair.ledger.is_rebuilt or now - pair.committed_at < IDLE_COMMIT_S:
            return False
        return pair.ledger.progress() != pair.committed

    def _transact(self) -> Iterator[None]:
        producer = self.producers[self.turn]
        if producer.worn:
            producer = self.producers[self.turn] = self._new_producer(self.turn)
        if producer.is_stuck:
            raise KafkaTxnFailedError("the last kafka_txn has not ended")
        member = self.member  # as of the ledgers, whatever the group says later
        in_background = self.choices.below(3) == 1
        copies_end: dict[int, int] = {}
        if self.world.is_verbose:
            for pair, plan in self.work:
                self.world.note(
                    self.instance, producer.name, producer.epoch, pair.partition, *outcomes(plan)
                )
        yield from self._write(producer, copies_end)
        self.turn = (self.turn + 1) % self.count
        self.under_way = self._commit(producer, self._offsets(copies_end), member)
        if not in_background:
            yield from self.under_way
            self._committed()

    def _new_producer(self, turn: int) -> Producer:
        name = f"{self.instance}-{turn}"
        return Producer(name, self.broker.init_producer(name))

    def _write(self, producer: Producer, copies_end: dict[int, int]) -> Iterator[None]:
        now = self._seconds()
        batches: dict[Place, list[Row]] = {}
        copies: set[Place] = set()
        for pair, plan in self.work:
            restore_plan(plan, partial(self._bodies, pair.partition))
            for out in pair.publisher.records(plan, pair.now_ms(now)):
                place = out.topic, self.world.partition_of(out.topic, out.partition, out.key)
                batches.setdefault(place, []).append((out.key, out.value, out.headers))
                if out.is_copy:
                    copies.add(place)
        while batches and self.broker.is_ending(producer.name):
            yield  # CONCURRENT_TRANSACTIONS: the client asks again
        for place, rows in batches.items():
            last = 0
            cut = self.choices.below(len(rows))
            for part in (rows[:cut], rows[cut:]) if cut else (rows,):
                last = self._request(producer, "produce", place, part)
                yield
            if place in copies:
                copies_end[place[1]] = last + 1

    def _offsets(self, copies_end: dict[int, int]) -> Offsets:
        offsets: Offsets = {}
        for pair, _ in self.work:
            number = pair.partition
            mine = self.progress[number] = pair.ledger.progress(copies_end.get(number, 0))
            offsets[NAMES.half, number] = mine.half, ""
            offsets[NAMES.op, number] = mine.op, mine.metadata()
        return offsets

    def _commit(
        self, producer: Producer, offsets: Offsets, member: Member | None
    ) -> Iterator[None]:
        while self.broker.is_ending(producer.name):
            yield
        self._send_offsets(producer, offsets, member)
        yield
        in_doubt = False
        for _ in range(COMMIT_RETRIES_MAX):
            try:
                answered = self.world.request("end", producer.name, producer.epoch, True)
            except RefusedError as error:
                producer.is_stuck = True
                raise KafkaTxnFailedError(str(error)) from error
            if answered is not None:
                break
            in_doubt = True
            yield
        else:
            producer.is_stuck = True
            raise KafkaTxnFailedError("the commit's outcome stays unknown")
        if self.choices.fault(2 * self.world.rate):
            # The connection was lost: the request and its repetition may both arrive.
            self.world.comes_late("end", producer.name, producer.epoch, True)
            in_doubt = True
        self._wear(producer, in_doubt=in_doubt)

    def _wear(self, producer: Producer, *, in_doubt: bool) -> None:
        producer.worn = producer.worn or in_doubt

    def _send_offsets(self, producer: Producer, offsets: Offsets, member: Member | None) -> None:
        self._request(producer, "offsets", member, offsets)

    def _request(self, producer: Producer, what: str, *arguments: Any) -> Any:
        try:
            place = arguments[0] if what == "produce" else None
            self.broker.add(producer.name, producer.epoch, place)
            answer = self.world.request(what, producer.name, producer.epoch, *arguments)
        except RefusedError as error:
            self._abort(producer)
            raise KafkaTxnFailedError(str(error)) from error
        if answer is None:
            self._abort(producer)
            raise KafkaTxnFailedError("timed out")
        return answer

    def _abort(self, producer: Producer) -> None:
        try:
            answered = self.world.request("end", producer.name, producer.epoch, False)
        except RefusedError:  # fenced, or nothing of it had arrived
            answered = None
        producer.is_stuck = answered is None

    def _settle(self) -> Iterator[None]:
        """Wait for the commit under way, whatever its outcome: all is read again anyway."""
        if self.under_way is not None:
            try:
                yield from self.under_way
            except KafkaTxnFailedError as error:
                self.world.note(self.instance, "failed while it was left behind:", str(error))
                self._let_go_after_settling()
            self.under_way = None

    def _let_go_after_settling(self) -> None:
        self._discard_producers()

    def _committed(self) -> None:
        now = self._seconds()
        self.under_way = None
        for pair, plan in self.work:
            pair.held = None
            pair.committed, pair.committed_at = self.progress[pair.partition], now
            pair.ledger.committed(pair.committed)
            self.world.note(self.instance, "committed", pair.committed, plan.records)
        self.work = []
