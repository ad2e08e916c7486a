"""Every error Penstock raises, grouped by what the caller can do about it.

PenstockError
├── NotFoundError             ask for something else          (also a KeyError)
│   └── SnapshotExpired       … a newer version: vacuum has removed this one
├── AlreadyExistsError        choose another name, or load what is there
├── ConflictError             reload, look at what changed, and try again
│   └── MergeConflict         … or say how conflicts are to be settled
├── CommitStateUnknown        commit again: a commit that landed is recognised, never doubled
├── StorageError              wait and retry
│   ├── StorageTimeout        … or allow more time
│   └── AccessDenied          … after fixing the credentials
├── CorruptError              restore the bytes
├── SourceChanged             link the source again, or restore it
├── SampleError               skip the row, or fix it
└── InvalidInputError         fix the call                    (also a ValueError)
    ├── LinkNotAllowed        allow the container, or do without the column
    └── UnsupportedFormat     upgrade Penstock
"""

__all__ = [
    "AccessDenied",
    "AlreadyExistsError",
    "CommitStateUnknown",
    "ConflictError",
    "CorruptError",
    "InvalidInputError",
    "LinkNotAllowed",
    "MergeConflict",
    "NotFoundError",
    "PenstockError",
    "PenstockWarning",
    "SampleError",
    "SnapshotExpired",
    "SourceChanged",
    "StorageError",
    "StorageTimeout",
    "UnsupportedFormat",
]


class PenstockError(Exception):
    """Base of everything Penstock raises on purpose."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else type(self).__name__


class NotFoundError(PenstockError, KeyError):
    """The store answered that the object, version, column or row is not there."""


class SnapshotExpired(NotFoundError):
    """A version is no longer kept, and what it needs has been removed."""


class AlreadyExistsError(PenstockError):
    """A create-only name is taken."""


class ConflictError(PenstockError):
    """Somebody else's commit touches what this one touches."""


class MergeConflict(ConflictError):
    """Two branches changed the same values differently; `conflicts` says which."""

    def __init__(self, message: str, conflicts: tuple[object, ...] = ()) -> None:
        super().__init__(message, conflicts)
        self.conflicts = conflicts


class CommitStateUnknown(PenstockError):
    """The store stopped answering before it could be proved whether a commit landed."""


class StorageError(PenstockError):
    """The store could not be reached or did not do as asked; says nothing about the bytes."""


class StorageTimeout(StorageError):
    """The deadline passed while waiting for the store."""


class AccessDenied(StorageError):
    """The store refused the credentials."""


class CorruptError(PenstockError):
    """Bytes that arrived intact are not the bytes that were written."""


class SourceChanged(PenstockError):
    """A linked object is not the object that was linked."""


class SampleError(PenstockError):
    """One row's value cannot be decoded."""


class InvalidInputError(PenstockError, ValueError):
    """The call, or the data given to it, is wrong."""


class LinkNotAllowed(InvalidInputError):
    """A row points into a container that this reader has not allowed."""


class UnsupportedFormat(InvalidInputError):
    """The table needs a feature that this version does not have."""


class PenstockWarning(UserWarning):
    """Something works, but not as well as the user may believe."""
