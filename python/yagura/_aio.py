"""The face for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Generator, Iterable, Optional, Sequence, Type, TypeVar, Union
from typing import cast

from ._client import ATTEMPTS_MAX, PAGE_ENTRIES, connector, overtaken, pause, whole
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
    as_bytes,
    as_expiry,
    as_versioned,
)
from ._yagura import Core

R = TypeVar("R")


async def _call(method: Callable[..., object], *arguments: object) -> Any:
    """Awaits an operation of the core. One that is cancelled goes on; nobody hears of its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: object, error: Optional[BaseException]) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def done(result: object, error: Optional[BaseException]) -> None:
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # The loop was closed meanwhile: nobody waits.

    method(*arguments, done)
    return await future


class AsyncClient:
    """A pool, reached, for one or many event loops. ``await AsyncClient.connect(…)``, or ``async with``::

        async with AsyncClient("10.0.0.1:4420") as client:
            await client.put("lantern", "lit")

    The methods are those of :class:`yagura.Client`, to await. One that is cancelled goes on if it was sent: a change may take
    effect, and nobody hears of it.
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
        """Options as those of :class:`yagura.Client`. It is connected by ``async with``, or by being awaited."""
        self._connector = connector(addresses, reactors, queue, timeout, repair, pool_id, security)
        self._opened: Optional[Core] = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def _connect(self) -> AsyncClient:
        if self._opened is None:
            self._opened = cast(Core, await _call(self._connector))
        return self

    @property
    def _core(self) -> Core:
        if self._opened is None:
            raise RuntimeError("not connected: use `async with AsyncClient(…)`, or await it")
        return self._opened

    async def __aenter__(self) -> AsyncClient:
        return await self._connect()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is under way; waits up to 10 s for slow members. Closing again does nothing."""
        await _call(self._core.close)

    async def get(self, key: Key) -> Optional[bytes]:
        """The value, or ``None``."""
        return cast(Optional[bytes], await _call(self._core.get, as_bytes(key)))

    async def get_versioned(self, key: Key) -> Optional[Versioned]:
        """The value with its version, expiry and tag, or ``None``."""
        return as_versioned(cast(Optional[Raw], await _call(self._core.get_versioned, as_bytes(key))))

    async def put(
        self,
        key: Key,
        value: Value,
        *,
        expires_at: Optional[float] = None,
        expires_in: Optional[float] = None,
        tag: int = 0,
    ) -> None:
        """Sets the key, whatever was there. Times in seconds."""
        await _call(self._core.put, as_bytes(key), as_bytes(value), as_expiry(expires_at, expires_in), tag)

    async def delete(self, key: Key) -> bool:
        """Removes the key. Of two deletes at once both may have seen it: ``take`` is exact."""
        return cast(bool, await _call(self._core.delete, as_bytes(key)))

    async def add(
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
        return cast(bool, await _call(self._core.add, as_bytes(key), as_bytes(value), expiry, tag))

    async def replace(
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
        return cast(bool, await _call(self._core.replace, as_bytes(key), as_bytes(value), expiry, tag))

    async def compare_and_set(
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
        stored = await _call(self._core.compare_and_set, as_bytes(key), version, as_bytes(value), expiry, tag)
        return cast(Optional[Version], stored)

    async def compare_and_delete(self, key: Key, version: Version) -> bool:
        """Removes the key if it has this version still; whether it did."""
        return cast(bool, await _call(self._core.compare_and_delete, as_bytes(key), version))

    async def increment(self, key: Key, delta: int = 1, initial: Optional[int] = 0) -> Optional[int]:
        """Adds to a decimal number. One that is not there counts as ``initial``; if that is ``None``, nothing is done and
        ``None`` returned."""
        return cast(Optional[int], await _call(self._core.increment, as_bytes(key), delta, initial))

    async def append(self, key: Key, more: Value) -> int:
        """Appends to the value; the new length."""
        return cast(int, await _call(self._core.append, as_bytes(key), as_bytes(more)))

    async def take(self, key: Key) -> Optional[Versioned]:
        """Removes the key and returns what it had: of two at once only one has it."""
        return as_versioned(cast(Optional[Raw], await _call(self._core.take, as_bytes(key))))

    async def update(
        self, key: Key, decide: Callable[[Optional[Versioned]], Union[Change[R], Awaitable[Change[R]]]]
    ) -> R:
        """Changes the key as ``decide`` says of what is there: ``Keep``, ``Put`` or ``Delete``. Nothing comes between what it
        was shown and its change; it is called again when something did. It may be a coroutine function."""
        for attempt in range(ATTEMPTS_MAX):
            found = await self.get_versioned(key)
            decided = decide(found)
            change: Change[R]
            if isinstance(decided, (Keep, Put, Delete)):
                change = decided
            else:
                change = await decided
            if isinstance(change, Keep) or (isinstance(change, Delete) and found is None):
                return change.result
            if isinstance(change, Delete):
                assert found is not None
                done = await self.compare_and_delete(key, found.version)
            else:
                done = await self._try_put(key, found, change)
            if done:
                return change.result
            await asyncio.sleep(pause(attempt))
        raise overtaken()

    async def _try_put(self, key: Key, found: Optional[Versioned], change: Put[R]) -> bool:
        expires_at, expires_in, tag = change.expires_at, change.expires_in, change.tag
        if found is None:
            return await self.add(key, change.value, expires_at=expires_at, expires_in=expires_in, tag=tag)
        stored = await self.compare_and_set(
            key, found.version, change.value, expires_at=expires_at, expires_in=expires_in, tag=tag
        )
        return stored is not None

    async def get_many(self, keys: Iterable[Key]) -> list[Optional[Versioned]]:
        """The values of many keys, pipelined, in their order; each for itself. Raises ``BatchError`` if some fail."""
        results = cast("list[Any]", await _call(self._core.get_many, [as_bytes(key) for key in keys]))
        return [as_versioned(raw) for raw in whole(results)]

    async def put_many(self, entries: Iterable[tuple[Key, Value]]) -> None:
        """Sets many keys, pipelined; each for itself. Raises ``BatchError`` if some fail."""
        pairs = [(as_bytes(key), as_bytes(value)) for key, value in entries]
        whole(cast("list[Any]", await _call(self._core.put_many, pairs)))

    async def scan(self, prefix: Key = b"") -> AsyncIterator[Entry]:
        """All keys that begin with ``prefix``, in the pool's own order. No snapshot."""
        start, cursor = as_bytes(prefix), cast(Optional[int], 0)
        while cursor is not None:
            page = await _call(self._core.list, start, cursor, PAGE_ENTRIES)
            entries, cursor = cast("tuple[list[tuple[bytes, int]], Optional[int]]", page)
            for entry in entries:
                yield Entry(*entry)
