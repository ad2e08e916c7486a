"""Errors on their way between processes, with their tracebacks."""

import io
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import cloudpickle

from penstock.errors import SampleError, text_of


class RemoteError(NamedTuple):
    """An error on its way: pickled as far as it can be, and as text."""

    pickled: bytes
    text: str
    traceback: str

    def revive(self, otherwise: Callable[[str], Exception] = SampleError) -> Exception:
        """The error with the traceback of its process, or one with its text if it cannot be made here."""
        made = otherwise(self.text)
        with suppress(Exception):
            error = pickle.loads(self.pickled)
            made = error if isinstance(error, Exception) else made
        made.add_note(f"In the worker process:\n{self.traceback}")
        return made


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles classes of scripts and notebooks so that the program that has them gets its own."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and value.__module__ == "__main__":
            return _class_of_main, (value.__qualname__, cloudpickle.dumps(value))
        return super().reducer_override(value)


def _class_of_main(name: str, by_value: bytes) -> Any:
    value: Any = sys.modules["__main__"]
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) else pickle.loads(by_value)


def portable(error: BaseException) -> RemoteError:
    """An error for another process; whatever the error itself raises is suppressed."""
    pickled, lines = b"", ""
    with suppress(BaseException):
        pickled = dumps(error)
    with suppress(BaseException):
        lines = "".join(traceback.format_exception(error))
    return RemoteError(pickled, f"{type(error).__name__}: {text_of(error)}", lines)


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle a value; the program whose `__main__` has its classes gets its own."""
    with io.BytesIO() as file:
        _Pickler(file, 5, buffer_callback=buffer_callback).dump(value)
        return file.getvalue()
