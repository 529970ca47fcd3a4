"""Names on the server: of prepared transactions, staging tables and sessions of one sink.

    headrace/<job>/<sink>/<owner>/<epoch>/<subtask>/<nonce>/<count>
        a prepared transaction; the server takes at most 199 bytes
    headrace_<job and sink>_<owner>_<epoch>_<subtask>_<nonce>_<count>
        a staging table: hashes in place of long names, and the count in base 16, since the server
        cuts identifiers at 63 bytes
    headrace_<job and sink>_<owner>_<epoch>_<subtask>_<nonce>
        a writer's session (application_name)

An owner is the job in one checkpoint directory. A nonce tells two writers apart whose epochs are
equal: epochs begin anew when a job starts without its old checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import xxhash

_PART_BYTES_MAX = 55
_OWNER_BYTES_MAX = 20


@dataclass(frozen=True, slots=True)
class Names:
    """Beginnings of all names of one sink and owner."""

    job: str
    sink: str
    owner: str

    @property
    def all_transactions(self) -> str:
        """Of prepared transactions, of every owner."""
        return f"headrace/{_part(self.job, _PART_BYTES_MAX)}/{_part(self.sink, _PART_BYTES_MAX)}/"

    @property
    def transactions(self) -> str:
        """Of prepared transactions."""
        return f"{self.all_transactions}{_part(self.owner, _OWNER_BYTES_MAX)}/"

    @property
    def all_tables(self) -> str:
        """Of staging tables, of every owner."""
        return f"headrace_{_hash(f'{len(self.job)}:{self.job}{self.sink}')[:12]}_"

    @property
    def tables(self) -> str:
        """Of staging tables and sessions."""
        return f"{self.all_tables}{_hash(self.owner)[:8]}_"

    def writer(self, epoch: int, subtask: int, nonce: str) -> WriterNames:
        """Names of one writer."""
        return WriterNames(
            f"{self.transactions}{epoch}/{subtask}/{nonce}/",
            f"{self.tables}{epoch}_{subtask}_{nonce}",
        )

    def epoch_of(self, name: str) -> int:
        """The epoch in a name that begins as one of these do; 0: there is none."""
        for beginning, end in ((self.transactions, "/"), (self.tables, "_")):
            epoch = name.removeprefix(beginning).split(end)[0]
            if name.startswith(beginning) and epoch.isdecimal():
                return int(epoch)
        return 0


@dataclass(frozen=True, slots=True)
class WriterNames:
    """Names that one writer gives."""

    transactions: str
    session: str

    def transaction(self, count: int) -> str:
        """Of its prepared transaction number `count`."""
        return f"{self.transactions}{count}"

    def table(self, count: int) -> str:
        """Of its staging table number `count`."""
        return f"{self.session}_{count:x}"


def _part(name: str, bytes_max: int) -> str:
    """Return a user's name as one part, different for different names."""
    safe = quote(name, safe="")
    if len(safe) <= bytes_max:
        return safe
    return f"{safe[: bytes_max - 17]}~{_hash(name)}"


def _hash(name: str) -> str:
    return str(xxhash.xxh3_64_hexdigest(name.encode()))
