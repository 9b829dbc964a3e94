"""What can go wrong, as one tree, and the one place where driver errors become it.

::

    HydratorError
    ├── CallError                 a call was refused; nothing was written
    │   ├── WrongDimensions       MH001
    │   ├── InvalidEmbedding      MH002
    │   ├── InvalidCount          MH003
    │   ├── UnknownPacking        MH004
    │   ├── InvalidNamespaces     MH005
    │   ├── UnknownMemory         MH006
    │   ├── AlreadySuperseded     MH007
    │   ├── InvalidHeading        MH008
    │   ├── ModelMismatch         MH009
    │   ├── InvalidMemory         MH010
    │   ├── NotPermitted          42501: a right, or a grant of the namespace, is missing
    │   ├── RateExceeded          MH012
    │   └── InvalidValue          class 22 and what the driver cannot send
    ├── InstallationError         MH011, and a schema that is not there
    ├── StoreUnavailable          the database cannot be reached, or gave up: class 08, 53, 57, …
    │   ├── ConnectionLost        in mid-call
    │   ├── OutcomeUnknown        in mid-write: it may have been kept, or not
    │   ├── TransactionConflict   40001, 40P01
    │   ├── SchemaChanged         0A000 of a plan; what a function of ours misses in mid-call
    │   ├── CallTimeout           57014, 55P03
    │   ├── ReadOnlyStore         25006
    │   └── StoreFull             53100
    ├── EmbedderError             the embedder failed
    └── EmbeddedServerError       the embedded server cannot be started

An error is ``retryable`` if nothing was written and the same call, or the same transaction, may
succeed when it is made again as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


class HydratorError(Exception):
    """Something went wrong in hydrator."""

    sqlstate: str | None = None
    """The SQLSTATE the database raises for it, where there is just one."""

    retryable: bool = False
    """Nothing was written, and the same call (or transaction) may succeed when it is made again."""

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.hint = hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class CallError(HydratorError):
    """The database refused the call; nothing was written."""


class WrongDimensions(CallError):
    """The vector has other dimensions than the installation holds."""

    sqlstate = "MH001"


class InvalidEmbedding(CallError):
    """The vector is null, zero or too long or short to be compared."""

    sqlstate = "MH002"


class InvalidCount(CallError):
    """A count, a budget, an interval or a floor is null, negative or not a number."""

    sqlstate = "MH003"


class UnknownPacking(CallError):
    """The packing is neither stop nor skip."""

    sqlstate = "MH004"


class InvalidNamespaces(CallError):
    """The namespaces are null, or one of them is."""

    sqlstate = "MH005"


class UnknownMemory(CallError):
    """There is no such memory in that namespace."""

    sqlstate = "MH006"


class AlreadySuperseded(CallError):
    """Another memory superseded it first."""

    sqlstate = "MH007"


class InvalidHeading(CallError):
    """The heading is not one line of 1 to 200 characters."""

    sqlstate = "MH008"


class ModelMismatch(CallError):
    """The stored vectors were made by another model."""

    sqlstate = "MH009"


class InvalidMemory(CallError):
    """A value is not one that a memory may hold."""

    sqlstate = "MH010"


class RateExceeded(CallError):
    """The namespace has had all the new memories that an hour may bring."""

    sqlstate = "MH012"


class NotPermitted(CallError):
    """The role has no right to this, or may not write in that namespace."""

    sqlstate = "42501"


class InvalidValue(CallError):
    """The value cannot be stored or compared: a NUL byte, a NaN, a number out of range."""


class InstallationError(HydratorError):
    """The schema is not installed, or cannot be installed like this."""

    sqlstate = "MH011"


class StoreUnavailable(HydratorError):
    """The database cannot be reached, or gave up on the call."""

    retryable = True


class ConnectionLost(StoreUnavailable):
    """The connection was lost in mid-call; nothing was written."""


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost in mid-write, which may or may not have been kept."""

    retryable = False


class TransactionConflict(StoreUnavailable):
    """A concurrent transaction stood in the way: a deadlock, or one after the other would differ."""


class SchemaChanged(StoreUnavailable):
    """The schema was changed in mid-call, as by an upgrade."""


class CallTimeout(StoreUnavailable):
    """The call took longer, or waited longer for a lock, than the database lets it; or was cancelled."""


class ReadOnlyStore(StoreUnavailable):
    """The server or the transaction takes no writes, as on a hot standby."""

    retryable = False


class StoreFull(StoreUnavailable):
    """The server has no room left on its disk."""

    retryable = False


class EmbedderError(HydratorError):
    """The embedder failed."""


class EmbeddedServerError(HydratorError):
    """The embedded server cannot be started."""


def _subclasses(cls: type[HydratorError]) -> Iterator[type[HydratorError]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _subclasses(subclass)


_BY_SQLSTATE = {cls.sqlstate: cls for cls in _subclasses(HydratorError) if cls.sqlstate}

_FAULTS: dict[str | None, type[StoreUnavailable]] = {
    "40001": TransactionConflict,
    "40P01": TransactionConflict,
    "57014": CallTimeout,
    "55P03": CallTimeout,
    "25006": ReadOnlyStore,
    "53100": StoreFull,
}

# Schema, table, function or column that is not there: the schema is absent or older.
_NOT_INSTALLED = {"3F000", "42P01", "42883", "42703"}

# How the server's internal messages begin, which are never translated, where one found it gone in mid-call.
_GONE = ("cache lookup failed for ", "could not open relation with OID ")


def translate(error: Exception) -> HydratorError | None:
    """Give the hydrator error that a driver's error stands for; None if it stands for none."""
    if type(error).__module__.startswith("sqlalchemy."):
        if isinstance(getattr(error, "orig", None), Exception):
            # It notices by itself when the driver's connection is lost.
            if getattr(error, "connection_invalidated", False):
                return ConnectionLost(" ".join(str(error.orig).split()))  # type: ignore[attr-defined]
            return translate(error.orig)  # type: ignore[attr-defined]
        # Its pool had no connection in time; it does not wrap the driver's error then.
        return StoreUnavailable(str(error)) if type(error).__name__ == "TimeoutError" else None
    if isinstance(error, UnicodeEncodeError):
        found = error.object[error.start : error.end]
        return InvalidValue(
            f"text holds {found!r}, which is no character",
            hint="Lone surrogates cannot be stored; remove them",
        )
    if not isinstance(error, psycopg.Error):
        return None
    sqlstate = error.sqlstate
    message = error.diag.message_primary or str(error).strip().replace("\n", " ")
    hint = error.diag.message_hint
    if sqlstate in _BY_SQLSTATE:
        return _BY_SQLSTATE[sqlstate](message, hint=hint)
    if sqlstate in _FAULTS:
        return _FAULTS[sqlstate](message, hint=hint)
    if _misses_in_mid_call(error):
        return SchemaChanged(message, hint="If it goes on, update the schema with: hydrator db upgrade")
    if sqlstate in _NOT_INSTALLED:
        return InstallationError(message, hint="Install or update the schema with: hydrator db upgrade")
    if sqlstate is not None and sqlstate.startswith("22"):
        return InvalidValue(message, hint=hint)
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(message, hint=hint)
    if sqlstate is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
        return InvalidValue(message, hint=hint)
    return HydratorError(message, hint=hint)


def _misses_in_mid_call(error: psycopg.Error) -> bool:
    """Tell whether a call found the schema other than it was when the call was planned or begun."""
    if error.sqlstate == "0A000":  # "cached plan must not change result type", in whatever language
        return error.diag.source_function == "RevalidateCachedQuery"
    if error.sqlstate == "XX000":
        return (error.diag.message_primary or "").startswith(_GONE)
    # Inside of a function, for the caller found the function itself.
    return error.sqlstate in _NOT_INSTALLED and bool(error.diag.context)


@contextmanager
def translated() -> Iterator[None]:
    """Raise what the driver raises inside as hydrator errors, the original as their cause."""
    try:
        yield
    except Exception as error:
        translation = translate(error)
        if translation is None:
            raise
        raise translation from error
