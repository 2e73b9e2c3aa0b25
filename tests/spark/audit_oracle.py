"""What an audit must find, for whoever reads the records once, slowly, in plain Python."""

from collections import Counter, defaultdict

from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.spark.tape import Tape


def expected(tape: Tape) -> set[tuple[str, str]]:
    """Return (kind, transaction id) of each violation; all was read, applied and kept."""
    refusals = {DeadReason.NOT_ALLOWED, DeadReason.UNDELIVERABLE}
    found, lives, first = set(), defaultdict(dict), {}
    got, letters = defaultdict(Counter), defaultdict(list)
    for at, meta, flaw, content in tape.halves():
        if meta.origin_offset < 0:
            lives[meta.transaction_id].setdefault(meta.message_index, (at, meta, flaw, content))
    for op in tape.ops():
        groups = [meta.producer_group for _, meta, *_ in lives.get(op.transaction_id, {}).values()]
        may = op.kind is not OpKind.DISCARD or op.source in {OpSource.CHECKER, OpSource.OPERATOR}
        if op.kind is not OpKind.UNKNOWN and may and op.producer_group in groups[:1]:
            other = first.setdefault(op.transaction_id, op).kind is not op.kind
            if other and op.source is not OpSource.CHECKER:
                found.add(("conflict", op.transaction_id))
    for txn, content in tape.reals():
        got[txn][content] += 1
    for meta, reason in tape.letters():
        letters[meta.transaction_id, meta.message_index] += [reason] * (reason != DeadReason.LATE)
    for txn, life in lives.items():
        op, buried = first.get(txn), {i: set(letters[txn, i]) for i in life}
        count = op.message_count if op and op.kind is OpKind.COMMIT else 0
        late = {i for i, message in life.items() if op and message[0] > op.half_offset}
        meant = {i for i in life if i < count} - late
        whole = meant == set(range(count))
        deliver = meant if whole and not any(life[i][2] for i in meant) else set()
        bury = (set(life) if op and op.kind is not OpKind.ROLLBACK else set()) - deliver - late
        refused = any(buried[i] & refusals for i in deliver)
        wanted = Counter(life[i][3] for i in deliver if not buried[i])
        missing, surplus = wanted - got[txn], got[txn] - wanted
        often = {i for i in life if life[i][3] in surplus}
        strange = surplus - Counter({life[i][3]: surplus[life[i][3]] for i in often})
        topics = [Counter(each[0] for each in some.elements()) for some in (missing, strange)]
        altered = (topics[0] & topics[1]).total()
        arrived, gone = (wanted & got[txn]).total() + altered, missing.total() - altered
        unburied = any(not buried[i] for i in bury) or any(buried[i] - refusals for i in deliver)
        stray = any(buried[i] for i in life.keys() - deliver - bury - late)
        again = any(len(each) > 1 for (whose, _), each in letters.items() if whose == txn)
        kinds = {
            "mismatch": altered,
            "torn": sum(map(bool, (arrived, gone, refused))) > 1 or (not whole and often & meant),
            "lost": (gone and not arrived and not refused) or unburied,
            "phantom": strange.total() > altered or stray or often - (deliver if whole else meant),
            "duplicate": again or often & deliver,
        }
        found |= {(kind, txn) for kind, is_so in kinds.items() if is_so}
    return found | {("phantom", txn) for txn in got.keys() - lives.keys() if got[txn]}
