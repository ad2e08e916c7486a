"""Every error Penstock raises, grouped by what the caller can do about it.

PenstockError
├── NotFoundError              request something else           (also a KeyError)
│   └── SnapshotExpiredError   … or load a newer version: vacuum removed this one
├── AlreadyExistsError         choose another name, or load the existing object
├── ConflictError              reload, review the changes, and retry
│   └── MergeConflictError     … or choose how to resolve the conflicts
├── CommitStateUnknownError    commit again: a commit that landed is recognised and not repeated
├── StorageError               wait and retry
│   ├── StorageTimeoutError    … or raise the timeout
│   └── AccessDeniedError      … after fixing the credentials
├── CorruptError               restore the bytes
├── SourceChangedError         link the source again, or restore it
├── SampleError                skip the row, or fix it
└── InvalidInputError          fix the call                     (also a ValueError)
    ├── LinkNotAllowedError    allow the container, or leave the column out
    └── UnsupportedFormatError upgrade Penstock

`PenstockWarning` is the one warning class.
"""

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "CommitStateUnknownError",
    "ConflictError",
    "CorruptError",
    "InvalidInputError",
    "LinkNotAllowedError",
    "MergeConflictError",
    "NotFoundError",
    "PenstockError",
    "PenstockWarning",
    "SampleError",
    "SnapshotExpiredError",
    "SourceChangedError",
    "StorageError",
    "StorageTimeoutError",
    "UnsupportedFormatError",
]


def escape_controls(text: str) -> str:
    """A text that makes a terminal do nothing but show it; line feeds and tabs remain.

    Names and values of a table come from its author, and so do parts of messages. Control characters and bidirectional
    overrides are written as Python writes them.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def text_of(error: BaseException) -> str:
    """What an error says, also if it is a user's and cannot be shown."""
    try:
        return str(error)
    except BaseException as other:
        return f"(its text cannot be shown: {type(other).__name__})"


class PenstockError(Exception):
    """Base class of every error that Penstock raises deliberately."""

    def __str__(self) -> str:  # KeyError.__str__ returns the repr of the message
        return escape_controls(str(self.args[0])) if self.args else type(self).__name__


class NotFoundError(PenstockError, KeyError):
    """The object, version, column or row does not exist. Request something else."""


class SnapshotExpiredError(NotFoundError):
    """Vacuum removed the objects of this version. Load a newer version, and tag versions to retain."""


class AlreadyExistsError(PenstockError):
    """The name is taken. Choose another one, or load the existing object."""


class ConflictError(PenstockError):
    """A concurrent commit changed the same rows or columns. Reload, review the changes, and retry."""


class MergeConflictError(ConflictError):
    """Two branches changed the same values differently; `conflicts` lists them. Choose how to resolve them."""

    def __init__(self, message: str, conflicts: tuple[object, ...] = ()) -> None:
        super().__init__(message, conflicts)
        self.conflicts = conflicts


class CommitStateUnknownError(PenstockError):
    """The store stopped responding, so the commit may or may not exist. Commit again; it is never applied twice."""


class StorageError(PenstockError):
    """A storage request failed; the stored bytes may be intact. Wait and retry."""


class StorageTimeoutError(StorageError):
    """A storage request exceeded its deadline. Retry, or raise the timeout."""


class AccessDeniedError(StorageError):
    """The store rejected the credentials. Fix them and retry."""


class CorruptError(PenstockError):
    """Stored bytes fail verification. Restore them from a copy."""


class SourceChangedError(PenstockError):
    """A linked object changed since it was linked. Link it again, or restore it."""


class SampleError(PenstockError):
    """One row's value cannot be decoded. Skip the row, or fix it."""


class InvalidInputError(PenstockError, ValueError):
    """The call or its input data is invalid. Fix the call."""


class LinkNotAllowedError(InvalidInputError):
    """A row links into a container that this reader does not allow. Allow it, or leave the column out."""


class UnsupportedFormatError(InvalidInputError):
    """The table needs a feature that this version lacks. Upgrade Penstock."""


class PenstockWarning(UserWarning):
    """The call works, but worse than the caller may expect."""
