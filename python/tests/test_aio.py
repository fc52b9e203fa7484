"""The face for asyncio."""

from __future__ import annotations

import asyncio
from typing import Optional

import pytest
import yagura
from conftest import Pool


def test_everything_once(pool: Pool) -> None:
    async def main() -> None:
        async with yagura.AsyncClient(pool.addresses) as client:
            await client.put("aio/lantern", "lit", expires_in=3600, tag=3)
            found = await client.get_versioned("aio/lantern")
            assert found is not None and (found.value, found.tag) == (b"lit", 3)
            assert await client.get("aio/lantern") == b"lit"
            stored = await client.compare_and_set("aio/lantern", found.version, "dim")
            assert stored is not None
            assert await client.compare_and_set("aio/lantern", found.version, "out") is None
            assert not await client.compare_and_delete("aio/lantern", found.version)
            assert not await client.add("aio/lantern", "new") and await client.replace("aio/lantern", "old")
            assert await client.append("aio/lantern", "er") == 5
            taken = await client.take("aio/lantern")
            assert taken is not None and taken.value == b"older"
            assert not await client.delete("aio/lantern")
            await client.put_many([("aio/a", "1"), ("aio/b", "2")])
            many = await client.get_many(["aio/a", "aio/c"])
            assert many[0] is not None and many[0].value == b"1" and many[1] is None
            assert {entry.key async for entry in client.scan("aio/")} == {b"aio/a", b"aio/b"}

    asyncio.run(main())


def test_many_requests_at_once(pool: Pool) -> None:
    async def main() -> None:
        client = await yagura.AsyncClient(pool.addresses, queue=16)
        await asyncio.gather(*(client.put(f"crowd/{number}", str(number)) for number in range(300)))
        found = await asyncio.gather(*(client.get(f"crowd/{number}") for number in range(300)))
        assert found == [str(number).encode() for number in range(300)]

        async def count(found: Optional[yagura.Versioned]) -> yagura.Change[None]:
            await asyncio.sleep(0)
            return yagura.Put(str(int(found.value) + 1 if found else 1), None)

        await asyncio.gather(*(client.update("crowd/updates", count) for _ in range(8)))
        assert await client.get("crowd/updates") == b"8"
        sums = await asyncio.gather(*(client.increment("crowd/turns") for _ in range(20)))
        assert sorted(total or 0 for total in sums) == list(range(1, 21))
        await client.close()

    asyncio.run(main())


def test_errors_and_cancellation(pool: Pool) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError):
            await yagura.AsyncClient(pool.addresses).get("key")
        with pytest.raises(yagura.Unavailable):
            await yagura.AsyncClient("127.0.0.1:1")
        async with yagura.AsyncClient(pool.addresses) as client:
            with pytest.raises(yagura.UsageError):
                await client.put("", "empty")
            task = asyncio.ensure_future(client.put("cancelled", "perhaps"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            async def slow(found: Optional[yagura.Versioned]) -> yagura.Change[None]:
                await asyncio.sleep(3600)
                return yagura.Put("never", None)

            update = asyncio.ensure_future(client.update("slow", slow))
            crowd = [asyncio.ensure_future(client.put(f"cancelled/{number}", "x")) for number in range(100)]
            await asyncio.sleep(0)
            for other in [update, *crowd[::2]]:
                other.cancel()
            ended = await asyncio.gather(update, *crowd, return_exceptions=True)
            assert isinstance(ended[0], asyncio.CancelledError) and await client.get("slow") is None
            assert all(result is None for result in ended[2::2]), "the others are served"
            assert await client.get("lantern-that-is-not-there") is None, "the client goes on"
        with pytest.raises(yagura.Closed):
            await client.get("key")

    asyncio.run(main())


def test_two_loops_share_one_client(pool: Pool) -> None:
    async def connect() -> yagura.AsyncClient:
        return await yagura.AsyncClient(pool.addresses)

    async def use(client: yagura.AsyncClient) -> Optional[bytes]:
        await client.put("loops", "shared")
        return await client.get("loops")

    client = asyncio.run(connect())
    assert asyncio.run(use(client)) == b"shared"
    assert asyncio.run(use(client)) == b"shared"
    asyncio.run(client.close())
