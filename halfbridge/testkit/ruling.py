"""What decided each transaction: by the op log, or by what clients were told.

The first decision in the op log rules (DESIGN.md, rule 2); halfbridge.serde.protocol says which
ops decide. What a client was told must stand in the op log, and a decision in the op log must be
one that some client or checker meant to make.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.serde.protocol import claimed_age_ms, decision_of
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource
from halfbridge.testkit.history import Anomaly, Finding, Outcome, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.testkit.history import ClientTransaction, ReadOp


@dataclass(frozen=True, slots=True)
class Ruling:
    """What may decide a transaction.

    Attributes:
        kinds: The decisions that may rule; empty when nobody decided.
        commit_at: Where the COMMIT stands that rules, if one does and its place is certain.
        message_count: How many messages that COMMIT names.
        vague: That nothing decided is possible too.
    """

    kinds: frozenset[OpKind] = frozenset()
    commit_at: Position | None = None
    message_count: int = COUNT_UNKNOWN
    vague: bool = False

    def __str__(self) -> str:
        return "/".join(sorted(self.kinds)) or "undecided"


def rule_by_op_log(
    known: Mapping[str, ClientTransaction], ops: Iterable[ReadOp]
) -> tuple[dict[str, Ruling], list[Finding]]:
    """Return the ruling of each known transaction, and what is wrong with the op log itself."""
    findings: list[Finding] = []
    decisions: dict[str, list[ReadOp]] = defaultdict(list)
    for read in sorted(ops, key=lambda read: (read.partition, read.offset)):
        tx = known.get(read.op.transaction_id)
        if tx is None or not _decides(tx, read):
            continue
        by_client = read.op.source in (OpSource.PRODUCER, OpSource.CHECK)
        if by_client and all(claim.kind is not read.op.kind for claim in tx.claims):
            detail = f"op[{read.partition}]@{read.offset}: nobody meant this {read.op.kind.value}"
            findings.append(Finding(Anomaly.PHANTOM, tx.transaction_id, detail))
        decisions[tx.transaction_id].append(read)
    for tid, tx in known.items():
        stands = {((read.partition, read.offset), read.op.kind) for read in decisions[tid]}
        for claim in tx.claims:
            if claim.outcome is Outcome.OK and (claim.position, claim.kind) not in stands:
                detail = f"{claim.kind.value} acknowledged at {claim.position}, not in the op log"
                findings.append(Finding(Anomaly.LOST, tid, detail))
    return {tid: _first(decisions[tid]) for tid in known}, findings


def rule_by_claims(known: Mapping[str, ClientTransaction]) -> dict[str, Ruling]:
    """Return the ruling of each known transaction by what clients were told.

    Weaker than the op log: whatever was in doubt, and a discard, may have come first.
    """
    rulings = {}
    for tid, tx in known.items():
        in_doubt = {claim.kind for claim in tx.claims if claim.outcome is Outcome.UNKNOWN}
        told = [claim for claim in tx.claims if claim.outcome is Outcome.OK and claim.position]
        first = min(told, key=lambda claim: claim.position or (0, 0), default=None)
        may_rule = frozenset(in_doubt | {OpKind.DISCARD} | ({first.kind} if first else set()))
        certain = first is not None and first.kind is OpKind.COMMIT and not in_doubt
        rulings[tid] = Ruling(
            may_rule, first.position if first and certain else None, vague=first is None
        )
    return rulings


def _decides(tx: ClientTransaction, read: ReadOp) -> bool:
    return tx.producer_group == read.op.producer_group and decision_of(read.op) is not None


def _first(decisions: list[ReadOp]) -> Ruling:
    if not decisions:
        return Ruling()
    may_rule = decisions[:1]
    first = decisions[0].op
    if claimed_age_ms(first) > 0:
        # A discard for age has no effect when it was appended too early; then the next rules.
        may_rule = decisions[:2]
    commit = next((read for read in may_rule if read.op.kind is OpKind.COMMIT), None)
    return Ruling(
        frozenset(read.op.kind for read in may_rule),
        (commit.partition, commit.offset) if commit else None,
        commit.op.message_count if commit else COUNT_UNKNOWN,
    )
