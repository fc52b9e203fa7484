#!/usr/bin/env python3
"""YCSB itself (site.ycsb:core) through our gateway, and against Redis and memcached as shipped: ycsb.py YAGURA OUTPUT.

Every server is started here (by row.py), on loopback, and ended by its id. Writes OUTPUT/YCSB-<replicas>.json in the form of `yagura bench`.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import row

HERE = pathlib.Path(__file__).resolve().parent.parent
# Shares in YCSB's own workload files (workloads/workloada …); E is of scans and left out.
WORKLOADS = {
    "A": {"readproportion": 0.5, "updateproportion": 0.5},
    "B": {"readproportion": 0.95, "updateproportion": 0.05},
    "C": {"readproportion": 1.0, "updateproportion": 0.0},
    "D": {"readproportion": 0.95, "updateproportion": 0.0, "insertproportion": 0.05, "requestdistribution": "latest"},
    "F": {"readproportion": 0.5, "updateproportion": 0.0, "readmodifywriteproportion": 0.5},
}
# Ten fields of 390 bytes: with key and header a page of 4 KiB, as BENCHMARKS says.
RECORD = {"fieldcount": 10, "fieldlength": 390, "readallfields": "true", "writeallfields": "true"}
START_SECONDS_MAX = 20
MEMBER_BYTES = 256 << 20


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Peers(row.Servers):
    """With servers of others."""

    def peer(self, name, command, port):
        if not shutil.which(command[0]):
            sys.exit(f"ycsb.py: {command[0]} is not installed; run: make deps")
        self.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return f"127.0.0.1:{port}"
            if time.monotonic() > deadline:
                sys.exit(f"ycsb.py: {name} does not answer at port {port}")
            time.sleep(0.02)


def our_gateway(servers, yagura, replicas):
    members = servers.pool(yagura, "ycsb", [f"memory={MEMBER_BYTES}"] * replicas)
    gateway = servers.ready([yagura, "gateway", "--pool", ",".join(members), "--listen", "127.0.0.1:0", "--json"])
    return gateway["listening"]


def ycsb(classes, database, server, phase, workload, options):
    settings = {"workload": "site.ycsb.workloads.CoreWorkload", "recordcount": options.records,
                "operationcount": options.operations, "measurementtype": "hdrhistogram",
                "hdrhistogram.percentiles": "50,99,99.9", "server": server, **RECORD, **WORKLOADS[workload]}
    command = ["java", "-cp", classes, "site.ycsb.Client", phase, "-threads", str(options.threads), "-db",
               f"io.yagura.bench.{database}"]
    for name, value in settings.items():
        command += ["-p", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    figures = {}
    for part, name, value in re.findall(r"^\[([^]]+)\], ([^,]+), ([0-9.E+-]+)$", done.stdout, re.M):
        figures.setdefault(part, {})[name] = float(value)
    failed = [part for part in figures for name in figures[part] if name.startswith("Return=") and name != "Return=OK"]
    if done.returncode or "OVERALL" not in figures or failed:
        sys.exit(f"ycsb.py: YCSB failed on {server} ({failed}):\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return figures


def sample(figures, part):
    """One part of a run (READ, UPDATE, …), in the form of `yagura bench`."""
    seconds, of = figures["OVERALL"]["RunTime(ms)"] / 1e3, figures[part]
    def at(percentile):
        return next(value for name, value in of.items() if re.fullmatch(percentile + r"(th)?PercentileLatency\(us\)", name))
    return {"operations": int(of["Operations"]), "seconds": seconds, "rate": figures["OVERALL"]["Throughput(ops/sec)"],
            "p50_us": at("50"), "p99_us": at("99"), "p999_us": at(r"99\.9"), "max_us": of["MaxLatency(us)"],
            "client_cpu_us": 0.0, "server_cpu_us": None}


def measured(yagura, classes, replicas, options):
    with Peers() as servers:
        memcached, redis = free_port(), free_port()
        sides = {
            "Yagura's gateway": ("Redis", our_gateway(servers, yagura, replicas)),
            "memcached": ("Memcached", servers.peer("memcached", ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-U", "0",
                                                                  "-p", str(memcached), "-m", "1024"], memcached)),
            "Redis": ("Redis", servers.peer("Redis", ["redis-server", "--bind", "127.0.0.1", "--port", str(redis),
                                                      "--save", "", "--appendonly", "no"], redis)),
        }
        for database, server in sides.values():
            ycsb(classes, database, server, "-load", "A", options)
        parts = {"A": ["READ", "UPDATE"], "F": ["READ", "READ-MODIFY-WRITE"], "D": ["READ", "INSERT"], "B": ["READ"], "C": ["READ"]}
        rounds = {(w, part, side): [] for w in WORKLOADS for part in parts[w] for side in sides}
        for number in range(options.rounds):
            for workload in WORKLOADS:
                for side, (database, server) in sides.items():
                    print(f"\rround {number + 1} of {options.rounds}: {workload} {side}   ", end="", file=sys.stderr, flush=True)
                    figures = ycsb(classes, database, server, "-t", workload, options)
                    for part in parts[workload]:
                        rounds[workload, part, side].append(sample(figures, part))
        print(file=sys.stderr)
    ours, *peers = sides
    ratios = []
    for peer in peers:
        for workload in WORKLOADS:
            pair = rounds[workload, "READ", ours], rounds[workload, "READ", peer]
            ratios.append(row.ratio(f"{workload}: rate / {peer}", *pair, "rate"))
        for name, key in (("read", ("C", "READ")), ("update", ("A", "UPDATE"))):
            ratios.append(row.ratio(f"{name}: p50 / {peer}", rounds[(*key, ours)], rounds[(*key, peer)], "p50_us"))
    named = [{"name": f"{w} {part.lower()}: {side}", "rounds": rounds[w, part, side]} for w, part, side in rounds]
    return {"row": f"YCSB-{replicas}", "title": f"YCSB 0.17 through the gateway, {replicas} replica(s), 10 fields of 390 bytes",
            "conditions": [f"{os.cpu_count()} cores shared by client, gateway, storage nodes and peers",
                           f"{options.records} records, {options.operations} operations a round, {options.threads} client threads",
                           "memory namespaces; memcached and Redis as shipped, in memory; Jedis 5.2, spymemcached 2.12",
                           f"{options.rounds} interleaved rounds; the rate is of the whole workload, CPU time is not taken"],
            "sides": named, "ratios": ratios}


def build(folder):
    """The databases' classes and all they need, as a class path."""
    subprocess.run(["mvn", "-q", "-B", "-f", HERE / "bench/ycsb/pom.xml", f"-Dycsb.directory={folder}", "package",
                    "dependency:copy-dependencies"], check=True)
    return f"{folder}/classes:{folder}/dependency/*"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("yagura")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--replicas", type=lambda text: [int(n) for n in text.split(",")], default=[1, 3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--operations", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        classes = build(folder)
        for replicas in options.replicas:
            row.tell(measured(options.yagura, classes, replicas, options), options.output)


if __name__ == "__main__":
    main()
