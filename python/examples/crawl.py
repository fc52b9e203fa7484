"""Workers that share out jobs and leave results: the face for asyncio.

python crawl.py 127.0.0.1:4421
"""

from __future__ import annotations

import asyncio
import sys

import yagura


async def work(client: yagura.AsyncClient, name: str) -> int:
    """Does jobs that nobody has taken; how many."""
    done = 0
    async for entry in client.scan("crawl/job/"):
        job = await client.take(entry.key)
        if job is None:
            continue  # another worker was faster
        await client.put(entry.key.replace(b"/job/", b"/done/"), b"%s by %s" % (job.value, name.encode()), expires_in=3600)
        done += 1
    return done


async def main(address: str) -> None:
    async with yagura.AsyncClient(address) as client:
        await client.put_many((f"crawl/job/{number}", f"page {number}") for number in range(50))
        counts = await asyncio.gather(*(work(client, name) for name in ("ada", "bob", "cid")))
        assert sum(counts) == 50, counts
        results = [entry async for entry in client.scan("crawl/done/")]
        assert len(results) == 50
        await asyncio.gather(*(client.delete(entry.key) for entry in results))
    print("all is well")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
