"""What programs do with redis-py, its asyncio face included: client.py URL, with the gateway's address as a redis:// URL."""

import asyncio
import sys
import threading

import redis
import redis.asyncio

URL = sys.argv[1]


def strings(r: redis.Redis) -> None:
    assert r.ping() is True
    assert r.set("k", "v") is True and r.get("k") == "v"
    assert r.set("k", "w", nx=True) is None and r.set("k", "w", xx=True, get=True) == "v"
    assert r.set("t", "x", ex=100) is True and 90 < r.ttl("t") <= 100
    assert r.getex("t", persist=True) == "x" and r.ttl("t") == -1 and r.ttl("none") == -2
    assert r.expire("t", 50) is True and r.expire("t", 100, lt=True) is False and r.persist("t") is True
    assert r.mset({"a": 1, "b": 2}) is True and r.mget("a", "none", "b") == ["1", None, "2"]
    assert r.incr("n") == 1 and r.incrby("n", 41) == 42 and r.decr("n") == 41
    assert r.incrbyfloat("f", "10.5") == 10.5 and r.incrbyfloat("f", 0.1) == 10.6
    assert r.append("k", "xyz") == 4 and r.strlen("k") == 4 and r.getrange("k", 1, 2) == "xy"
    assert r.setrange("k", 1, "ab") == 4 and r.getset("k", "new") == "wabz" and r.getdel("k") == "new"
    assert r.exists("k", "a", "b") == 2 and r.delete("a", "b", "none") == 2 and r.type("n") == "string"
    binary = redis.Redis.from_url(URL)
    value = bytes(range(256)) * 1000
    assert binary.set(b"\x00\xff", value) and binary.get(b"\x00\xff") == value


def hashes(r: redis.Redis) -> None:
    assert r.hset("h", mapping={"x": 1, "y": "two", "z": ""}) == 3 and r.hset("h", "x", 5) == 0
    assert r.hgetall("h") == {"x": "5", "y": "two", "z": ""} and r.hlen("h") == 3
    assert r.hget("h", "y") == "two" and r.hmget("h", "x", "none") == ["5", None]
    assert r.hincrby("h", "x", 10) == 15 and r.hincrbyfloat("h", "x", 0.5) == 15.5
    assert sorted(r.hkeys("h")) == ["x", "y", "z"] and r.hexists("h", "z") and r.hstrlen("h", "y") == 3
    assert dict(r.hscan_iter("h", count=1)) == r.hgetall("h") and r.hdel("h", "x", "y", "z") == 3 and not r.exists("h")
    r.set("s", "text")
    for call in (lambda: r.hget("s", "x"), lambda: r.lpush("l", 1), lambda: r.rename("s", "t"), lambda: r.incr("s")):
        try:
            call()
        except redis.ResponseError:
            continue
        raise AssertionError("no error")


def keys(r: redis.Redis) -> None:
    names = {f"scan:{number}" for number in range(300)}
    with r.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.set(name, name)
        assert pipe.execute() == [True] * len(names)
    assert set(r.scan_iter("scan:*", count=50)) == names
    with r.pipeline(transaction=False) as pipe:
        assert pipe.set("p", 1).incr("p").get("p").execute() == [True, 2, "2"]
    assert r.dbsize() > 0 and r.info("server")["redis_mode"] == "standalone"
    assert r.config_get("maxmemory") == {"maxmemory": "0"} and r.client_setname("me") and r.client_getname() == "me"
    assert "get" in r.command() and r.wait(1, 100) >= 0
    try:
        r.pipeline(transaction=True).set("m", 1).execute()
    except redis.ResponseError as error:
        assert "transactions" in str(error), error
    else:
        raise AssertionError("MULTI is not served")
    assert r.get("m") is None, "what was refused was done"


def threads(r: redis.Redis) -> None:
    def add() -> None:
        for _ in range(50):
            r.incr("sum")

    workers = [threading.Thread(target=add) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert r.get("sum") == "400"


async def together() -> None:
    async with redis.asyncio.Redis.from_url(URL, decode_responses=True) as r:
        await asyncio.gather(*(r.set(f"async:{number}", number) for number in range(50)))
        found = await asyncio.gather(*(r.get(f"async:{number}") for number in range(50)))
        assert found == [str(number) for number in range(50)]
        assert await r.hset("async", mapping={"a": 1}) == 1 and await r.hgetall("async") == {"a": "1"}


for protocol in (2, 3):
    client = redis.Redis.from_url(URL, decode_responses=True, protocol=protocol)
    client.delete("k", "t", "a", "b", "n", "f", "h", "s", "l", "p", "sum", "async")
    for part in (strings, hashes, keys, threads):
        part(client)
    client.delete("async")
    asyncio.run(together())
print("done")
