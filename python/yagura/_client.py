"""The face for threads."""

from __future__ import annotations

import random
import time
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Type, TypeVar, Union, cast

from ._errors import BatchError, Error, Unavailable
from ._types import (
    Change,
    Delete,
    Entry,
    Keep,
    Key,
    Put,
    Raw,
    Security,
    Value,
    Version,
    Versioned,
    as_addresses,
    as_bytes,
    as_expiry,
    as_versioned,
)
from ._yagura import Core

R = TypeVar("R")
#: Called with a result or an error.
Done = Callable[[object, Optional[BaseException]], None]

#: Keys asked for at a time by a scan.
PAGE_ENTRIES = 1000
#: Attempts of one update: any number of others get on one by one; a key so busy for so long is no key to count in.
ATTEMPTS_MAX = 1000
#: First pause of an update that was overtaken, in seconds; doubles, up to the second number.
PAUSE_FIRST, PAUSE_LAST = 0.0005, 0.05


def connector(
    addresses: Union[str, Sequence[str]],
    reactors: int,
    queue: Optional[int],
    timeout: Optional[float],
    repair: bool,
    pool_id: Optional[str],
    security: Optional[Security],
) -> Callable[[Optional[Done]], object]:
    """``Core.connect`` with these arguments but the last."""
    keys = security or Security()
    return lambda done: Core.connect(
        as_addresses(addresses),
        reactors,
        queue,
        timeout,
        repair,
        pool_id,
        keys.host_nqn,
        keys.dhchap_key_file,
        keys.dhchap_ctrl_key_file,
        keys.concat,
        keys.tls_key_file,
        keys.tls_identity == 0,
        keys.tls_legacy,
        done,
    )


def whole(results: list[Any]) -> list[Any]:
    """The results if all are well."""
    if any(isinstance(result, Error) for result in results):
        raise BatchError(results)
    return results


def pause(attempt: int) -> float:
    """How long an update that was overtaken waits, so that two do not overtake each other for ever."""
    return random.random() * min(PAUSE_FIRST * 2.0 ** min(attempt, 16), PAUSE_LAST)


def overtaken() -> Unavailable:
    """What an update raises that never got on."""
    return Unavailable(f"{ATTEMPTS_MAX} attempts were overtaken by other changes of the key: try again later")


class Client:
    """A pool, reached from the addresses of some of its members (``host:port``); one that answers is enough.

    May be used by any number of threads. Operations are linearizable for each key, and raise :class:`yagura.Error`. A signal
    (Ctrl-C) ends the waiting; an operation that was sent goes on. A child of ``os.fork`` (so also of ``multiprocessing`` with
    the start method "fork") has to connect anew: there the parent's client raises :class:`yagura.UsageError`.
    """

    def __init__(
        self,
        addresses: Union[str, Sequence[str]],
        *,
        reactors: int = 1,
        queue: Optional[int] = None,
        timeout: Optional[float] = None,
        repair: bool = False,
        pool_id: Optional[str] = None,
        security: Optional[Security] = None,
    ) -> None:
        """Connects.

        :param reactors: threads that do the work, each with its own connections.
        :param queue: requests under way on one of them; who comes then waits.
        :param timeout: seconds an operation may take; by default the store's own limit, 10.
        :param repair: bring members up to date that have missed writes, in the background.
        :param pool_id: the pool that is meant, if members of several are at the addresses.
        """
        connect = connector(addresses, reactors, queue, timeout, repair, pool_id, security)
        self._core = cast(Core, connect(None))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is under way; waits up to 10 s for slow members. Closing again does nothing."""
        self._core.close(None)

    def get(self, key: Key) -> Optional[bytes]:
        """The value, or ``None``."""
        return cast(Optional[bytes], self._core.get(as_bytes(key), None))

    def get_versioned(self, key: Key) -> Optional[Versioned]:
        """The value with its version, expiry and tag, or ``None``."""
        return as_versioned(cast(Optional[Raw], self._core.get_versioned(as_bytes(key), None)))

    def put(
        self,
        key: Key,
        value: Value,
        *,
        expires_at: Optional[float] = None,
        expires_in: Optional[float] = None,
        tag: int = 0,
    ) -> None:
        """Sets the key, whatever was there. Times in seconds."""
        self._core.put(as_bytes(key), as_bytes(value), as_expiry(expires_at, expires_in), tag, None)

    def delete(self, key: Key) -> bool:
        """Removes the key. Of two deletes at once both may have seen it: ``take`` is exact."""
        return cast(bool, self._core.delete(as_bytes(key), None))

    def add(
        self,
        key: Key,
        value: Value,
        *,
        expires_at: Optional[float] = None,
        expires_in: Optional[float] = None,
        tag: int = 0,
    ) -> bool:
        """Sets the key if it is not there; whether it did."""
        expiry = as_expiry(expires_at, expires_in)
        return cast(bool, self._core.add(as_bytes(key), as_bytes(value), expiry, tag, None))

    def replace(
        self,
        key: Key,
        value: Value,
        *,
        expires_at: Optional[float] = None,
        expires_in: Optional[float] = None,
        tag: int = 0,
    ) -> bool:
        """Sets the key if it is there; whether it did."""
        expiry = as_expiry(expires_at, expires_in)
        return cast(bool, self._core.replace(as_bytes(key), as_bytes(value), expiry, tag, None))

    def compare_and_set(
        self,
        key: Key,
        version: Version,
        value: Value,
        *,
        expires_at: Optional[float] = None,
        expires_in: Optional[float] = None,
        tag: int = 0,
    ) -> Optional[Version]:
        """Sets the key if it has this version still; its new version, or ``None`` if it has not."""
        expiry = as_expiry(expires_at, expires_in)
        stored = self._core.compare_and_set(as_bytes(key), version, as_bytes(value), expiry, tag, None)
        return cast(Optional[Version], stored)

    def compare_and_delete(self, key: Key, version: Version) -> bool:
        """Removes the key if it has this version still; whether it did."""
        return cast(bool, self._core.compare_and_delete(as_bytes(key), version, None))

    def increment(self, key: Key, delta: int = 1, initial: Optional[int] = 0) -> Optional[int]:
        """Adds to a decimal number. One that is not there counts as ``initial``; if that is ``None``, nothing is done and
        ``None`` returned."""
        return cast(Optional[int], self._core.increment(as_bytes(key), delta, initial, None))

    def append(self, key: Key, more: Value) -> int:
        """Appends to the value; the new length."""
        return cast(int, self._core.append(as_bytes(key), as_bytes(more), None))

    def take(self, key: Key) -> Optional[Versioned]:
        """Removes the key and returns what it had: of two at once only one has it."""
        return as_versioned(cast(Optional[Raw], self._core.take(as_bytes(key), None)))

    def update(self, key: Key, decide: Callable[[Optional[Versioned]], Change[R]]) -> R:
        """Changes the key as ``decide`` says of what is there: ``Keep``, ``Put`` or ``Delete``. Nothing comes between what it
        was shown and its change; it is called again when something did. What it raises is raised here, and changes nothing."""
        for attempt in range(ATTEMPTS_MAX):
            found = self.get_versioned(key)
            change = decide(found)
            if isinstance(change, Keep) or (isinstance(change, Delete) and found is None):
                return change.result
            if isinstance(change, Delete):
                assert found is not None
                done = self.compare_and_delete(key, found.version)
            else:
                done = self._try_put(key, found, change)
            if done:
                return change.result
            time.sleep(pause(attempt))
        raise overtaken()

    def _try_put(self, key: Key, found: Optional[Versioned], change: Put[R]) -> bool:
        expires_at, expires_in, tag = change.expires_at, change.expires_in, change.tag
        if found is None:
            return self.add(key, change.value, expires_at=expires_at, expires_in=expires_in, tag=tag)
        stored = self.compare_and_set(
            key, found.version, change.value, expires_at=expires_at, expires_in=expires_in, tag=tag
        )
        return stored is not None

    def get_many(self, keys: Iterable[Key]) -> list[Optional[Versioned]]:
        """The values of many keys, pipelined, in their order; each for itself. Raises ``BatchError`` if some fail."""
        results = cast("list[Any]", self._core.get_many([as_bytes(key) for key in keys], None))
        return [as_versioned(raw) for raw in whole(results)]

    def put_many(self, entries: Iterable[tuple[Key, Value]]) -> None:
        """Sets many keys, pipelined; each for itself. Raises ``BatchError`` if some fail."""
        pairs = [(as_bytes(key), as_bytes(value)) for key, value in entries]
        whole(cast("list[Any]", self._core.put_many(pairs, None)))

    def scan(self, prefix: Key = b"") -> Iterator[Entry]:
        """All keys that begin with ``prefix``, in the pool's own order. No snapshot."""
        start, cursor = as_bytes(prefix), cast(Optional[int], 0)
        while cursor is not None:
            page = self._core.list(start, cursor, PAGE_ENTRIES, None)
            entries, cursor = cast("tuple[list[tuple[bytes, int]], Optional[int]]", page)
            yield from (Entry(*entry) for entry in entries)
