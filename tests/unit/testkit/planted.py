"""Faults that are planted in a clean history, each with the name under which it must be found."""

from dataclasses import replace

from halfbridge.serde import headers as header_names
from halfbridge.serde.records import OpKind
from halfbridge.testkit.history import Anomaly
from tests.unit.testkit.histories import History


def drop_whole(history: History) -> Anomaly:
    """A committed message never arrives."""
    history.real.remove(history.records_of(history.clients[0].transaction_id)[0])
    return Anomaly.LOST


def drop_part(history: History) -> Anomaly:
    """One of three committed messages never arrives."""
    history.real.remove(history.records_of(history.clients[2].transaction_id)[1])
    return Anomaly.TORN


def drop_dead_part(history: History) -> Anomaly:
    """One of two discarded messages is not in the dead-letter topic."""
    history.dead.pop(0)
    return Anomaly.TORN


def drop_dead_whole(history: History) -> Anomaly:
    """A discarded transaction is nowhere."""
    history.dead.clear()
    return Anomaly.LOST


def repeat(history: History) -> Anomaly:
    """A committed message arrives once more."""
    tx = history.clients[0]
    history.deliver(tx.transaction_id, tx.messages[0])
    return Anomaly.DUPLICATED


def deliver_the_dead(history: History) -> Anomaly:
    """A dead-lettered message is delivered although it was discarded."""
    tx = history.clients[3]
    history.deliver(tx.transaction_id, tx.messages[0])
    return Anomaly.PHANTOM


def deliver_rolled_back(history: History) -> Anomaly:
    """A rolled-back message arrives."""
    tx = history.clients[1]
    history.deliver(tx.transaction_id, tx.messages[0])
    return Anomaly.PHANTOM


def deliver_stranger(history: History) -> Anomaly:
    """A message arrives that nobody sent."""
    message = replace(history.clients[0].messages[0], digest="")
    history.deliver("f" * 32, message)
    return Anomaly.PHANTOM


def swap_own(history: History) -> Anomaly:
    """Two messages of one transaction to one real partition change places."""
    records = history.records_of(history.clients[2].transaction_id)
    history.swap(records[0], records[2])
    return Anomaly.REORDERED


def spoil_value(history: History) -> Anomaly:
    """A value arrives with other bytes."""
    history.real[0] = replace(history.real[0], value=b"?")
    return Anomaly.CORRUPTED


def spoil_key(history: History) -> Anomaly:
    """A key arrives as null."""
    history.real[0] = replace(history.real[0], key=None)
    return Anomaly.CORRUPTED


def spoil_header(history: History) -> Anomaly:
    """An empty header arrives as null."""
    headers = tuple((n, v or None) for n, v in history.real[0].headers)
    history.real[0] = replace(history.real[0], headers=headers)
    return Anomaly.CORRUPTED


def spoil_transaction_id(history: History) -> Anomaly:
    """A record arrives under the id of no transaction."""
    headers = tuple(
        (n, b"x" if n == header_names.TRANSACTION_ID else v) for n, v in history.real[0].headers
    )
    history.real[0] = replace(history.real[0], headers=headers)
    return Anomaly.CORRUPTED


def drop_index(history: History) -> Anomaly:
    """The second message of a transaction arrives without its index."""
    record = history.records_of(history.clients[2].transaction_id)[1]
    headers = tuple(each for each in record.headers if each[0] != header_names.MESSAGE_INDEX)
    history.real[history.real.index(record)] = replace(record, headers=headers)
    return Anomaly.CORRUPTED


def spoil_index(history: History) -> Anomaly:
    """The third message of a transaction arrives with the index of the second."""
    record = history.records_of(history.clients[2].transaction_id)[2]
    headers = tuple((n, b"1" if n == header_names.MESSAGE_INDEX else v) for n, v in record.headers)
    history.real[history.real.index(record)] = replace(record, headers=headers)
    return Anomaly.CORRUPTED


def spoil_dead(history: History) -> Anomaly:
    """A dead letter's value has other bytes."""
    history.dead[0] = replace(history.dead[0], value=None)
    return Anomaly.CORRUPTED


def forget_decision(history: History) -> Anomaly:
    """Nothing ever decides a transaction."""
    tx = history.clients[1]
    history.clients[1] = replace(tx, claims=())
    history.ops = [op for op in history.ops if op.op.transaction_id != tx.transaction_id]
    return Anomaly.UNDECIDED


def lose_decision(history: History) -> Anomaly:
    """An acknowledged decision is not in the op log."""
    tx = history.clients[1]
    history.ops = [op for op in history.ops if op.op.transaction_id != tx.transaction_id]
    return Anomaly.LOST


def invent_decision(history: History) -> Anomaly:
    """The op log holds a COMMIT that no client made and no checker answered."""
    tid = "1" + history.clients[0].transaction_id[1:]
    client = replace(history.clients[1], transaction_id=tid, claims=())
    history.clients.append(client)
    history.log(tid, OpKind.ROLLBACK, 1)
    return Anomaly.PHANTOM


FAULTS = (
    drop_whole,
    drop_part,
    drop_dead_part,
    drop_dead_whole,
    repeat,
    deliver_the_dead,
    deliver_rolled_back,
    deliver_stranger,
    swap_own,
    spoil_value,
    spoil_key,
    spoil_header,
    spoil_transaction_id,
    drop_index,
    spoil_index,
    spoil_dead,
    forget_decision,
    lose_decision,
    invent_decision,
)
