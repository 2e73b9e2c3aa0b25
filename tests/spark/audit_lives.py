"""Writes random transactions, with defects, to the tape."""

import random
from typing import Any

from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.spark.tape import NAMES, PAIRS, Half, Tape

DEFECTS = ("none",) * 6 + ("drop", "twice", "alter", "contradict", "dead_letter", "deliver")
KEYS = (None, b"", b"a", b"b")
VALUES = (None, b"", b"0", b"1")
USERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = ((), (("h", b"1"),), (("h", None),) * 2)


class Lives:
    """Writes random transactions to the tape, as a daemon with random defects would.

    Halves first, interleaved; then one decision after the other, each applied at once, so that
    deliveries are in the order of decisions.
    """

    def __init__(self, seed: int, tape: Tape | None = None) -> None:
        self.random = random.Random(seed)
        self.tape = tape or Tape()
        self._lives: list[list[Half]] = []

    def play(self, count: int) -> Tape:
        lives = [self._messages() for _ in range(count)]
        for life in self.random.sample(lives, len(lives)):
            self._decide(life)
        self._lives += lives
        return self.tape

    def come_back(self, count: int) -> None:
        """Write records that name transactions which may have ended long ago."""
        pick, tape = self.random.choice, self.tape
        for life in self.random.sample(self._lives, count):
            half = pick(life)
            pick(
                (
                    lambda half=half: tape.real(half),
                    lambda half=half: tape.dead(half, DeadReason.CHECK_TIMES),
                    lambda half=half: tape.put_back(half),
                    lambda half=half: tape.op(OpKind.UNKNOWN, half, source=OpSource.CHECK),
                    lambda half=half: tape.op(pick((OpKind.COMMIT, OpKind.ROLLBACK)), half),
                    lambda half=half: tape.half(half.txn, pair=half.pair, message_index=7),
                )
            )()

    def _messages(self) -> list[Half]:
        pick, tape = self.random.choice, self.tape
        pair, txn = tape.lane + pick(range(PAIRS)), tape.new_id()
        life = []
        for index in range(pick((1, 1, 1, 2, 3))):
            given: dict[str, Any] = {
                "pair": pair,
                "key": pick(KEYS),
                "value": pick(VALUES),
                "user": pick(USERS),
                "message_index": index,
                "real_topic": pick(("orders", "orders", "invoices")),
            }
            life.append(tape.half(txn, **given))
            if pick((0, 0, 0, 0, 1)):
                tape.half(txn, **{**given, "value": b"again"})
        if pick((0, 0, 0, 0, 1)):
            life = [tape.put_back(half) for half in life]
        if pick((0,) * 9 + (1,)) and len(life) > 1:  # remove all records of one message
            half = life.pop(0)
            for topic, at in ((NAMES.half, half.at), (NAMES.half, half.origin)):
                tape.drop(topic, pair, at)
            rows = tape.rows[NAMES.half, pair]
            rows[:] = [row for row in rows if (row[1], row[4]) != (b"again", half.origin + 1)]
        return life

    def _decide(self, life: list[Half]) -> None:
        pick, tape, last = self.random.choice, self.tape, life[-1]
        how = pick(("commit",) * 6 + ("rollback", "discard", "nothing", "check"))
        if pick((0, 0, 0, 1)):
            tape.op(OpKind.UNKNOWN, last, source=OpSource.CHECK)
        if pick((0,) * 9 + (1,)):
            tape.op(OpKind.ROLLBACK, last, producer_group="others")
        defect = pick(DEFECTS)
        if how == "nothing":
            if defect == "deliver":
                tape.real(life[0])
            return
        kind = {"rollback": OpKind.ROLLBACK, "discard": OpKind.DISCARD}.get(how, OpKind.COMMIT)
        source = {"discard": OpSource.CHECKER, "check": OpSource.CHECK}.get(how, OpSource.PRODUCER)
        count = last.metadata.message_index + pick((1,) * 9 + (0,))
        op = {"source": source, "message_count": count, "reason": "CHECK_TIMES"}
        tape.op(kind, last, half_offset=max(half.origin for half in life), **op)
        if pick((0, 0, 0, 1)):
            tape.op(kind, last, **op)
        self._come_out(life, kind, count, defect)
        if defect == "contradict":
            other = OpKind.COMMIT if kind is OpKind.ROLLBACK else OpKind.ROLLBACK
            tape.op(other, last)

    def _come_out(self, life: list[Half], kind: OpKind, count: int, defect: str) -> None:
        tape, pick = self.tape, self.random.choice
        if kind is OpKind.ROLLBACK:
            if defect == "deliver":
                tape.real(life[0])
            return
        meant = [half for half in life if half.metadata.message_index < count]
        whole = [half.metadata.message_index for half in meant] == list(range(count))
        refused = pick((0,) * 9 + (1,))
        deliver = meant if kind is OpKind.COMMIT and whole and not refused else []
        victim = pick(life)
        for half in life:
            if half in deliver:
                self._deliver(half, defect if half is victim else "none")
            elif half is not victim or defect != "drop":
                reason = DeadReason.CHECK_TIMES
                if kind is OpKind.COMMIT:
                    reason = DeadReason.EXTRA if half not in meant else DeadReason.INCOMPLETE
                    reason = DeadReason.NOT_ALLOWED if half in meant and whole else reason
                for _ in range(2 if half is victim and defect == "twice" else 1):
                    tape.dead(half, reason)

    def _deliver(self, half: Half, defect: str) -> None:
        tape = self.tape
        partition = 1 if half.key == b"b" else 0
        if defect == "dead_letter":
            tape.dead(half, DeadReason.CHECK_TIMES)
        elif defect == "alter":
            tape.real(half, partition, value=b"other")
        elif defect != "drop":
            tape.real(half, partition)
            if defect == "twice":
                tape.real(half, partition)
