"""The face for threads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Iterator, NoReturn, Optional

import pytest
import yagura
from conftest import Pool


@pytest.fixture
def client(pool: Pool) -> Iterator[yagura.Client]:
    with yagura.Client(pool.addresses[0]) as client:
        yield client


def test_put_get_delete(client: yagura.Client) -> None:
    client.put("lantern", "lit")
    assert client.get("lantern") == b"lit"
    client.put(b"\x00\xff", bytearray(b"\x01" * 100_000))
    assert client.get(b"\x00\xff") == b"\x01" * 100_000
    assert client.delete("lantern") and not client.delete("lantern")
    assert client.get("lantern") is None and client.get_versioned("lantern") is None


def test_versions_expiry_and_tags(client: yagura.Client) -> None:
    end = time.time() + 3600
    client.put("door", "open", expires_at=end, tag=7)
    first = client.get_versioned("door")
    assert first is not None and first.expires_at is not None and abs(first.expires_at - end) < 0.002
    assert (first.value, first.tag) == (b"open", 7)
    version = client.compare_and_set("door", first.version, "shut")
    assert version is not None and version != first.version
    assert client.compare_and_set("door", first.version, "open") is None
    assert not client.compare_and_delete("door", first.version)
    assert client.compare_and_delete("door", version)
    client.put("door", "brief", expires_in=0.05)
    time.sleep(0.1)
    assert client.get("door") is None


def test_conditional_operations(client: yagura.Client) -> None:
    assert client.add("gate", "a") and not client.add("gate", "b")
    assert client.replace("gate", "c") and not client.replace("no gate", "d")
    assert client.append("gate", "d") == 2
    taken = client.take("gate")
    assert taken is not None and taken.value == b"cd" and client.take("gate") is None
    assert client.increment("count", 5, initial=None) is None
    assert client.increment("count", 5) == 5 and client.increment("count", -7) == -2
    client.put("count", "many")
    with pytest.raises(yagura.NotANumber):
        client.increment("count")
    client.delete("count")


def test_threads_count_exactly(client: yagura.Client) -> None:
    def count(found: Optional[yagura.Versioned]) -> yagura.Change[int]:
        total = int(found.value) + 1 if found else 1
        return yagura.Put(str(total), total)

    def work() -> None:
        for _ in range(5):
            client.update("updates", count)
            client.increment("turns")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("updates") == b"20" and client.get("turns") == b"20"
    assert client.update("updates", lambda found: yagura.Delete("gone")) == "gone"
    assert client.update("updates", lambda found: yagura.Keep(found)) is None


def test_what_an_update_raises_is_raised_and_changes_nothing(client: yagura.Client) -> None:
    def broken(found: Optional[yagura.Versioned]) -> yagura.Change[None]:
        raise ZeroDivisionError("on purpose")

    client.put("broken", "whole")
    with pytest.raises(ZeroDivisionError):
        client.update("broken", broken)
    assert client.get("broken") == b"whole"


def test_a_child_of_fork_is_told_so_and_may_connect_anew(pool: Pool, client: yagura.Client) -> None:
    async def through_asyncio(parents: yagura.AsyncClient) -> None:
        with pytest.raises(yagura.UsageError, match="fork"):
            await parents.get("family")
        await parents.close()
        async with yagura.AsyncClient(pool.addresses) as own:
            assert await own.get("family") == b"two"

    async def connect() -> yagura.AsyncClient:
        opened = await yagura.AsyncClient(pool.addresses)
        await opened.put("family", "one")
        return opened

    parents = asyncio.run(connect())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            with pytest.raises(yagura.UsageError, match="fork"):
                client.get("family")
            client.close()
            with yagura.Client(pool.addresses) as own:
                own.put("family", "two")
            asyncio.run(through_asyncio(parents))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get("family") == b"two", "the parent's client goes on"
    asyncio.run(parents.close())


FORKS = """
import os, sys, yagura
parents = yagura.Client(sys.argv[1])
parents.put("forked", "one")
child = os.fork()
with yagura.Client(sys.argv[1]) as own:
    own.put("forked", "two")
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_of_fork_that_made_its_own_client_ends_as_others_do(pool: Pool) -> None:
    # It joined threads that its parent has, and panicked each time.
    command = [sys.executable, "-c", FORKS, pool.addresses[0]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


LEAVES = """
import asyncio, sys, yagura
client = yagura.Client(sys.argv[1])
async def main() -> None:
    other = await yagura.AsyncClient(sys.argv[1], queue=2)
    left = [asyncio.ensure_future(other.put(f"left/{number}", "behind")) for number in range(300)]
    await asyncio.sleep(0)
asyncio.run(main())
"""


def test_a_program_that_leaves_requests_behind_ends(pool: Pool) -> None:
    command = [sys.executable, "-c", LEAVES, pool.addresses[0]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", ["shop.py", "crawl.py"])
def test_examples(pool: Pool, name: str) -> None:
    command = [sys.executable, str(Path(__file__).parent.parent / "examples" / name), pool.addresses[0]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.endswith("all is well\n"), ended.stderr


def test_many_and_scan(client: yagura.Client) -> None:
    client.put_many((f"lamp-{number}", str(number)) for number in range(50))
    found = client.get_many(["lamp-7", "lamp-none", b"lamp-49"])
    assert [value and value.value for value in found] == [b"7", None, b"49"]
    entries = list(client.scan("lamp-"))
    assert len(entries) == 50 and {entry.value_length for entry in entries} == {1, 2}
    with pytest.raises(yagura.BatchError) as failed:
        client.get_many(["lamp-7", ""])
    assert isinstance(failed.value.results[1], yagura.UsageError) and not failed.value.outcome_unknown


def test_mistakes(pool: Pool, client: yagura.Client) -> None:
    with pytest.raises(yagura.UsageError):
        client.put("", "empty")
    with pytest.raises(ValueError):
        client.put("k" * (yagura.KEY_BYTES_MAX + 1), "long")
    with pytest.raises(yagura.UsageError):
        client.put("key", 5)  # type: ignore[arg-type]
    with pytest.raises(yagura.UsageError):
        client.put("key", "value", expires_at=1.0, expires_in=1.0)
    with pytest.raises(yagura.UsageError):
        yagura.Client(pool.addresses, reactors=0)
    with pytest.raises(yagura.UsageError):
        yagura.Client(pool.addresses, security=yagura.Security(concat=True))
    with pytest.raises(yagura.Unavailable):
        yagura.Client("127.0.0.1:1")


def test_the_pool_that_is_meant(pool: Pool, own_pool: Pool) -> None:
    """Members of two are at the addresses."""

    def identity(of: Pool) -> str:
        line = [of.binary, "pool", "status", "--pool", of.addresses[0], "--json"]
        return str(json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)["pool"])

    both = [pool.addresses[0], own_pool.addresses[0]]
    with pytest.raises(yagura.UsageError, match="several pools"):
        yagura.Client(both)
    for of in (pool, own_pool):
        with yagura.Client(both, pool_id=identity(of)) as client:
            client.put("which", identity(of))
    for of in (pool, own_pool):
        with yagura.Client(of.addresses[0], pool_id=identity(of)) as client:
            assert client.get("which") == identity(of).encode()
    with pytest.raises(yagura.Refused, match=identity(pool)):
        yagura.Client(pool.addresses, pool_id=identity(own_pool))
    with pytest.raises(yagura.UsageError, match="pool_id `a pool`"):
        yagura.Client(pool.addresses, pool_id="a pool")


def test_a_closed_client_says_so(pool: Pool) -> None:
    with yagura.Client(",".join(pool.addresses), reactors=2) as client:
        client.put("key", "value")
    with pytest.raises(yagura.Closed):
        client.get("key")
    client.close()


def test_the_lock_is_given_up_while_waiting(own_pool: Pool) -> None:
    with yagura.Client(own_pool.addresses, timeout=1.0) as client:
        client.put("key", "value")
        patient = yagura.Client(own_pool.addresses)
        own_pool.kill(2)
        ticks = 0
        failed: list[Exception] = []

        def wait() -> None:
            try:
                client.put("key", "other")
            except yagura.Error as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while waiting.is_alive():
            ticks += 1
            time.sleep(0.01)
        assert ticks > 5, "another thread ran meanwhile"
        assert isinstance(failed[0], yagura.OutcomeUnknown) and failed[0].outcome_unknown
        with pytest.raises((yagura.TimedOut, yagura.Unavailable)) as read:
            client.get("key")
        assert not read.value.outcome_unknown

        def ring(*_: object) -> NoReturn:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            patient.put("key", "never mind")
        signal.signal(signal.SIGALRM, before)


def test_one_dead_member_changes_nothing(own_pool: Pool) -> None:
    with yagura.Client(own_pool.addresses) as client:
        client.put("key", "value")
        own_pool.kill(1)
        assert client.get("key") == b"value"
        client.put("key", "other")
        assert client.get("key") == b"other"
