"""The table of halfbridge.serde.protocol as columns, and the verification of signatures.

The table says which ops decide, and which contradict. All of it runs in the JVM. Signatures are
verified by the only Python UDF of the jobs (DESIGN.md, E-001). Rows pass through it only where a
key file is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError, NotBelievedError
from halfbridge.serde.headers import parse_half
from halfbridge.serde.protocol import DISCARDERS, EFFECTS, STATE_AFTER, YIELDING, State
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource
from halfbridge.serde.signatures import Verifier
from halfbridge.serde.signing_keys import load_key_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import Row
    from typing_extensions import Unpack

    from halfbridge.serde.headers import Headers
    from halfbridge.serde.signing_keys import KeyRing
    from halfbridge.serde.topics import TopicNames

    # Partition, append time, key, value and headers.
    _Record = tuple[int, int, bytearray | None, bytearray | None, Sequence[Row] | None]

_DISCARD = OpKind.DISCARD.value
_DECIDING = [kind.value for kind in OpKind if EFFECTS[State.UNDECIDED, kind] in STATE_AFTER]


def decides(kind: Column, source: Column) -> Column:
    """Tell whether an op decides an undecided transaction, as `protocol.decision_of`."""
    may_say = (kind != _DISCARD) | source.isin(*(each.value for each in DISCARDERS))
    return kind.isin(*_DECIDING) & may_say


def contradicts(first: Column, kind: Column, source: Column) -> Column:
    """Tell whether a decision is a conflict, after a first decision of the kind `first`."""
    return (kind != first) & (source != YIELDING.value)


def claimed_age_ms(kind: Column, source: Column, age_ms: Column) -> Column:
    """Return the age that an op has to prove, or 0, as `protocol.claimed_age_ms`."""
    is_daemons = (kind == _DISCARD) & (source == OpSource.CHECKER.value)
    return F.when(is_daemons, F.greatest(age_ms, F.lit(0))).otherwise(0)


def proves_its_age(claimed_ms: Column, op_append_ms: Column, first_append_ms: Column) -> Column:
    """Tell whether an op may take effect, as `protocol.proves_its_age`."""
    is_known = (op_append_ms >= 0) & (first_append_ms >= 0)
    is_old = is_known & (op_append_ms - first_append_ms >= claimed_ms)
    return (claimed_ms == 0) | F.coalesce(is_old, F.lit(col=False))


def covers_what_is_there(resume: Column, source: Column, count: Column) -> Column:
    """Tell whether a COMMIT delivers what is there, as `protocol.covers_what_is_there`."""
    return (count == COUNT_UNKNOWN) & (resume > 0) & (source == OpSource.OPERATOR.value)


@dataclass(frozen=True, slots=True)
class SignatureJudge:
    """Judges signatures as the daemon does."""

    ring: KeyRing  # the keys of the key file; executors get it
    names: TopicNames  # the installation's topics

    def half_doubt(self, append_ms: Column) -> Column:
        """Return why a row of the half topic is not believed; null: it is, or it is unreadable."""
        return _judged(partial(_check_half, self), append_ms)

    def op_doubt(self, append_ms: Column) -> Column:
        """Return the same of a row of the op topic."""
        return _judged(partial(_check_op, self), append_ms)


def signature_judge(path: Path | None, names: TopicNames) -> SignatureJudge | None:
    """Return what judges by the key file at `path`; None without one: every record is believed.

    Raises:
        KeyFileError: the file cannot be used; its owner corrects it.
    """
    return None if path is None else SignatureJudge(load_key_file(path), names)


def _judged(check: Callable[..., None], append_ms: Column) -> Column:
    # E-001: Spark SQL verifies no Ed25519, and no secret may be a literal in its query plan.
    judge = F.udf(partial(_doubt, check), "string")
    return judge(F.col("partition"), append_ms, F.col("key"), F.col("value"), F.col("headers"))


def _doubt(check: Callable[..., None], *row: object) -> str | None:
    try:
        check(*row)
    except NotBelievedError as error:
        return error.reason
    except DecodeError:
        return None  # the columns say why it cannot be read
    return None


def _check_half(judge: SignatureJudge, *row: Unpack[_Record]) -> None:
    partition, append_ms, key, value, headers = row
    pairs = _pairs(headers)
    metadata, _ = parse_half(pairs)
    Verifier(judge.ring, judge.names).check_half(
        partition, append_ms, metadata, headers=pairs, key=_bytes(key), value=_bytes(value)
    )


def _check_op(judge: SignatureJudge, *row: Unpack[_Record]) -> None:
    partition, append_ms, key, value, headers = row
    data = _bytes(value) or b""
    op, pairs = OP.decode(data), lambda: _pairs(headers)
    Verifier(judge.ring, judge.names).check_op(
        partition, append_ms, op, headers=pairs, key=_bytes(key), value=data
    )


def _pairs(headers: Sequence[Row] | None) -> Headers:
    return [(each["key"], _bytes(each["value"])) for each in headers or ()]


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)
