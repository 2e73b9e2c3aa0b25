"""What an audit must find, for whoever reads the records once, slowly, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from serde import headers as names
from serde.avro import DEAD_LETTER, OP
from serde.records import DeadReason, OpKind, OpSource
from tests.spark.tape import NAMES, Tape

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSALS = {DeadReason.NOT_ALLOWED, DeadReason.UNDELIVERABLE}
OURS = (names.TRANSACTION_ID, names.BORN_TIMESTAMP)


def expected(tape: Tape) -> set[tuple[str, str]]:
    """Return (kind, transaction id) of each violation; all was read, applied and kept."""
    found: set[tuple[str, str]] = set()
    lives: dict[str, dict[int, Any]] = defaultdict(dict)
    first: dict[str, Any] = {}
    got: dict[str, Counter[Any]] = defaultdict(Counter)
    letters: dict[tuple[str, int], list[DeadReason]] = defaultdict(list)
    for key, value, _, _, at, _, _, headers in _rows(tape, NAMES.half):
        meta, flaw = names.parse_half(headers)
        if meta.origin_offset < 0:
            content = (meta.real_topic, key, value, tuple(names.user_headers(headers)))
            lives[meta.transaction_id].setdefault(meta.message_index, (at, meta, flaw, content))
    for _, value, *_ in _rows(tape, NAMES.op):
        op = OP.decode(value)
        known = lives.get(op.transaction_id)
        is_own = known and op.producer_group == next(iter(known.values()))[1].producer_group
        may_say = op.kind is not OpKind.DISCARD or op.source in (
            OpSource.CHECKER,
            OpSource.OPERATOR,
        )
        if op.kind is not OpKind.UNKNOWN and may_say and is_own:
            stands = first.setdefault(op.transaction_id, op)
            if stands.kind is not op.kind and op.source is not OpSource.CHECKER:
                found.add(("conflict", op.transaction_id))
    for key, value, topic, _, _, _, _, headers in _rows(tape, *tape.real_topics()):
        user = tuple(header for header in headers if header[0] not in OURS)
        got[dict(headers)[names.TRANSACTION_ID].decode()][topic, key, value, user] += 1
    for *_, headers in _rows(tape, NAMES.dead):
        meta, _ = names.parse_half(headers[:-1])
        reason = DEAD_LETTER.decode(headers[-1][1]).reason
        letters[meta.transaction_id, meta.message_index] += [reason] * (reason != DeadReason.LATE)
    for txn, life in lives.items():
        op = first.get(txn)
        commit = op is not None and op.kind is OpKind.COMMIT
        late = {i for i, m in life.items() if op and m[0] > op.half_offset}
        meant = {i for i in life if commit and i not in late and i < op.message_count}
        whole = meant == set(range(op.message_count if commit else 0))
        deliver = meant if whole and not any(life[i][2] for i in meant) else set()
        bury = (set(life) if op and op.kind is not OpKind.ROLLBACK else set()) - deliver - late
        refused = {i for i in deliver if set(letters[txn, i]) & REFUSALS}
        wanted = Counter(life[i][3] for i in deliver - {i for i in deliver if letters[txn, i]})
        missing, surplus = wanted - got[txn], got[txn] - wanted
        contents = {message[3] for message in life.values()}
        strange = Counter({content: n for content, n in surplus.items() if content not in contents})
        altered = sum((_topics(missing) & _topics(strange)).values())
        arrived = sum((wanted & got[txn]).values()) + altered
        in_part = not whole and any(life[i][3] in surplus for i in meant)
        gone = sum(missing.values()) - altered
        kinds = {
            "mismatch": altered,
            "torn": (arrived and gone + len(refused)) or (refused and gone) or in_part,
            "lost": (gone and not arrived and not refused) or any(not letters[txn, i] for i in bury)
            or any(set(letters[txn, i]) - REFUSALS for i in deliver),
            "phantom": sum(strange.values()) > altered or any(letters[txn, i] for i in life
            if i not in deliver | bury | late)
            or any(life[i][3] in surplus for i in set(life) - deliver - (meant if not whole
            else set())),
            "duplicate": any(len(each) > 1 for (t, _), each in letters.items() if t == txn)
            or any(life[i][3] in surplus for i in deliver),
        }  # fmt: skip
        found |= {(kind, txn) for kind, is_so in kinds.items() if is_so}
    return found | {("phantom", txn) for txn in got.keys() - lives.keys() if got[txn]}


def _rows(tape: Tape, *topics: str) -> Iterator[tuple[Any, ...]]:
    for (topic, _), rows in sorted(tape.rows.items()):
        yield from rows if topic in topics else ()


def _topics(contents: Counter[Any]) -> Counter[str]:
    return sum((Counter({content[0]: n}) for content, n in contents.items()), Counter())
