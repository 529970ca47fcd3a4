"""The writer of one subtask: rows go to the server in pieces, and once more where it went away.

A writer keeps the rows of its open transaction until the server has made them durable. A lost
connection costs a new one, on which the transaction begins anew, and no restart of the job; up to
`_KEPT_BYTES_MAX`, beyond which a lost connection fails the attempt.

The first thing on a new connection is to end the session of the old one, which may live on behind
a broken network, and hold locks, or still be about to make the transaction durable.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import pyarrow as pa

from ...contract.errors import HeadraceError
from ...contract.operators import OperatorContext, RestoredState, StateSnapshot, Transaction
from .columns import Converter
from .connection import Connection, Database, Patience, Refused, Unavailable
from .names import Names, WriterNames
from .sessions import end_sessions
from .transfers import Transfer

#: Rows are copied once they are so many.
_PIECE_BYTES = 4 << 20
_KEPT_BYTES_MAX = 64 << 20

MakeTransfer = Callable[[WriterNames, int], Transfer]


def _nonce() -> str:
    return secrets.token_hex(4)


class PostgresWriter:
    """Writes one transaction a checkpoint. Keeps no state: transactions carry the rows.

    Args:
        transfer: makes the writer's transaction number n.
        retry_ns: for how long to try when the server is away.
    """

    def __init__(
        self,
        database: Database,
        converter: Converter,
        transfer: MakeTransfer,
        *,
        retry_ns: int,
        nonce: Callable[[], str] = _nonce,
    ) -> None:
        self._database = database
        self._converter = converter
        self._make_transfer = transfer
        self._retry_ns = retry_ns
        self._nonce = nonce
        self._sink = ""
        self._names = WriterNames("", "")
        self._connection: Connection | None = None
        self._connected_before = False
        self._count = 0
        self._transfer: Transfer | None = None
        #: Rows of the open transaction that a new connection would need; `_sent` of these batches
        #: are on the connection.
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._unsent_bytes = 0
        self._sent = 0
        self._begun = False
        self._forgotten = False
        self._sealing = False

    def open(self, context: OperatorContext) -> None:
        """Fix the names; the connection waits for the first rows."""
        self._sink = context.operator
        names = Names(context.job, context.operator, context.owner)
        self._names = names.writer(context.epoch, context.index, self._nonce())

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the open transaction. Raises: HeadraceError."""
        if self._transfer is None:
            self._count += 1
            self._transfer = self._make_transfer(self._names, self._count)
        try:
            rows = self._converter.convert(batch)
        except HeadraceError as error:
            raise HeadraceError(f"sink {self._sink!r}: {error}") from None
        self._kept.append(rows)
        self._unsent_bytes += rows.nbytes
        if self._unsent_bytes >= _PIECE_BYTES:
            self._insist(self._send)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Make the transaction durable on the server. Raises: HeadraceError."""
        transfer = self._transfer
        if transfer is None:
            return ()
        self._insist(self._seal)
        self._forget()
        return (Transaction(transfer.id, transfer.facts()),)

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """End the session, and with it a transaction that was not pre-committed."""
        self._disconnect()

    def _insist(self, step: Callable[[Connection, Transfer], None]) -> None:
        """Perform a step, on a new connection if need be."""
        assert self._transfer is not None, "no transaction is open"
        patience = Patience(self._retry_ns)
        while True:
            try:
                step(self._connected(), self._transfer)
                return
            except Refused as error:
                raise HeadraceError(f"sink {self._sink!r}: the server says: {error}") from None
            except Unavailable as error:
                self._disconnect()
                if self._forgotten:
                    why = f"and more than {_KEPT_BYTES_MAX >> 20} MiB were written since"
                    raise HeadraceError(
                        f"sink {self._sink!r} has lost its connection ({error}), {why} the last"
                        " checkpoint, too much to be sent again"
                    ) from None
                if not patience.wait():
                    waited = f"{self._retry_ns / 1e9:g} s"
                    raise HeadraceError(
                        f"sink {self._sink!r}: the server has been away for {waited}: {error}"
                    ) from None

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._database.connect(self._names.session)
            # From here on `_disconnect` closes it.
            self._connection = connection
            if self._connected_before:
                end_sessions(connection, lambda name: name == self._names.session)
            self._connected_before = True
        return self._connection

    def _send(self, connection: Connection, transfer: Transfer) -> None:
        if not self._begun:
            transfer.begin(connection)
            self._begun = True
        rest = self._kept[self._sent :]
        if rest:
            transfer.send(connection, pa.Table.from_batches(rest))
        self._sent = len(self._kept)
        self._kept_bytes += self._unsent_bytes
        self._unsent_bytes = 0
        if self._kept_bytes > _KEPT_BYTES_MAX:
            self._forgotten = True
            self._kept, self._sent = [], 0

    def _seal(self, connection: Connection, transfer: Transfer) -> None:
        if self._sealing and transfer.is_sealed(connection):
            return
        self._send(connection, transfer)
        self._sealing = True
        transfer.seal(connection)

    def _forget(self) -> None:
        """The transaction is durable."""
        self._transfer = None
        self._kept, self._sent = [], 0
        self._kept_bytes = self._unsent_bytes = 0
        self._begun = self._forgotten = self._sealing = False

    def _disconnect(self) -> None:
        self._begun, self._sent = False, 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None
