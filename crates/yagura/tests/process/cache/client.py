"""What programs do with pymemcache and pylibmc, text and binary: client.py PORT."""

import sys

import pylibmc
from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError

port = int(sys.argv[1])


def check(got, expected):
    if got != expected:
        raise SystemExit(f"got {got!r}, expected {expected!r}")


def with_pymemcache(client):
    check(client.set("k", b"v", noreply=False), True)
    check(client.get("k"), b"v")
    check(client.get("none", default="x"), "x")
    check(client.set_many({f"m{i}": str(i).encode() for i in range(300)}, noreply=False), [])
    check(client.get_many([f"m{i}" for i in range(301)]), {f"m{i}": str(i).encode() for i in range(300)})
    # One line of 1.6 MB.
    keys = [f"absent{i:06}" for i in range(120_000)] + [f"m{i}" for i in range(300)]
    check(client.get_many(keys), {f"m{i}": str(i).encode() for i in range(300)})
    value, cas = client.gets("k")
    check(client.cas("k", b"w", cas, noreply=False), True)
    check(client.cas("k", b"x", cas, noreply=False), False)
    check(client.cas("none", b"x", cas, noreply=False), None)
    check(client.add("k", b"x", noreply=False), False)
    check(client.replace("k", b"12", noreply=False), True)
    check(client.append("k", b"3", noreply=False), True)
    check(client.prepend("k", b"4", noreply=False), True)
    check(client.incr("k", 7), 4130)
    check(client.decr("k", 5000), 0)
    check(client.touch("k", 100, noreply=False), True)
    check(client.delete("k", noreply=False), True)
    check(client.delete("k", noreply=False), False)
    big = bytes(range(256)) * 4000
    check(client.set("big", big, noreply=False), True)
    check(client.get("big"), big)
    try:
        client.get("k" * 251)
        raise SystemExit("a key of 251 bytes was taken")
    except MemcacheClientError:
        pass
    check(client.version(), b"1.6.18")
    check(client.stats()[b"curr_items"] > 0, True)
    check(client.flush_all(noreply=False), True)
    check(client.get("m1"), None)


def with_pylibmc(binary):
    client = pylibmc.Client([f"127.0.0.1:{port}"], binary=binary, behaviors={"cas": True})
    check(client.set("k", {"a": [1, 2.5, "three"]}), True)
    check(client.get("k"), {"a": [1, 2.5, "three"]})
    check(client.set_multi({f"m{i}": i for i in range(200)}), [])
    check(client.get_multi([f"m{i}" for i in range(201)]), {f"m{i}": i for i in range(200)})
    value, cas = client.gets("k")
    check(client.cas("k", "w", cas), True)
    check(client.cas("k", "x", cas), False)
    check(client.add("k", 1), False)
    check(client.set("n", 10), True)
    check(client.incr("n", 5), 15)
    check(client.decr("n", 20), 0)
    check(client.append("text", "x"), False)
    check(client.set("text", "a"), True)
    check(client.append("text", "b"), True)
    check(client.prepend("text", "c"), True)
    check(client.get("text"), "cab")
    check(client.touch("k", 100), True)
    check(client.delete("k"), True)
    check(client.get("k"), None)
    check(len(client.get_stats()[0][1]) > 20, True)
    check(client.flush_all(), True)
    check(client.get("m1"), None)


with_pymemcache(Client(("127.0.0.1", port)))
with_pymemcache(PooledClient(("127.0.0.1", port), max_pool_size=4))
with_pylibmc(binary=False)
with_pylibmc(binary=True)
print("done")
