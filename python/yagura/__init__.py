"""Yagura: a replicated key-value store that needs no server of its own.

>>> with yagura.Client("10.0.0.1:4420") as client:  # doctest: +SKIP
...     client.put("lantern", "lit")
...     client.get("lantern")
b'lit'
"""

from ._aio import AsyncClient
from ._client import Client
from ._errors import (
    BatchError,
    Closed,
    Error,
    NotANumber,
    OutcomeUnknown,
    OutOfSpace,
    Refused,
    TimedOut,
    Unavailable,
    UsageError,
)
from ._types import Change, Delete, Entry, Keep, Key, Put, Security, Value, Version, Versioned
from ._yagura import KEY_BYTES_MAX, VALUE_BYTES_MAX, __version__

__all__ = [
    "KEY_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "AsyncClient",
    "BatchError",
    "Change",
    "Client",
    "Closed",
    "Delete",
    "Entry",
    "Error",
    "Keep",
    "Key",
    "NotANumber",
    "OutOfSpace",
    "OutcomeUnknown",
    "Put",
    "Refused",
    "Security",
    "TimedOut",
    "Unavailable",
    "UsageError",
    "Value",
    "Version",
    "Versioned",
    "__version__",
]
