#!/usr/bin/env python3
"""Row B14: files on a mount of ours, in a directory of this machine, and on GlusterFS where that is installed: files.py YAGURA OUTPUT.

All three lie on the disk of OUTPUT: ours over three targets (2 + 1 columns), GlusterFS dispersed 2 + 1, the directory as it is. fio past
the page cache, by access size, sequential, random and strided; and what people do: untar, clone, find, create, stat, unlink. Every
server is started here, on loopback or in a network namespace of its own, and ended. Wants root, for the mounts.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import row

HERE = pathlib.Path(__file__).resolve().parent.parent
FILE_BYTES = 256 << 20
MEMBER_BYTES = 6 << 30
NAMES_BYTES = 1 << 30
# (name, how fio calls it, bytes of an access). Strided: as much is passed over as is read.
ACCESSES = [(f"{name} {size}", way.replace("SIZE", size), size)
            for size in ("4k", "64k", "1m")
            for name, way in (("sequential read", "read"), ("random read", "randread"), ("strided read", "read:SIZE"),
                              ("sequential write", "write"), ("random write", "randwrite"))]
SMALL_FILES = 1000


def ours(servers, yagura, folder):
    names = ",".join(servers.pool(yagura, "names", [f"memory={NAMES_BYTES}"] * 3))
    members = []
    for index in range(3):
        place = f"file={folder}/member{index},size={MEMBER_BYTES}"
        target = servers.ready([yagura, "target", "--listen", "127.0.0.1:0", "--json", "--nqn",
                                f"nqn.2026-11.io.yagura:bytes-{index}", "--namespace", place])
        members.append(f"--member={target['listening']}")
    subprocess.run([yagura, "file", "create", "bench", "--pool", names, *members], check=True, stdout=subprocess.DEVNULL)
    place = folder / "ours"
    place.mkdir()
    servers.callback(subprocess.run, ["umount", "-l", place], check=False, stderr=subprocess.DEVNULL)
    servers.ready([yagura, "file", "mount", "bench", place, "--pool", names, "--json"])
    return place


def gluster(servers, folder):
    """GlusterFS refuses loopback's addresses: it has a network namespace with one of its own."""
    space, address = "yagura-b14", "10.99.0.1"
    within = ["ip", "netns", "exec", space]

    def run(*command, check=True):
        return subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)

    run("ip", "netns", "add", space)
    servers.callback(run, "ip", "netns", "del", space, check=False)
    for words in (["link", "set", "lo", "up"], ["link", "add", "v0", "type", "veth", "peer", "name", "v1"],
                  ["addr", "add", f"{address}/24", "dev", "v0"], ["link", "set", "v0", "up"]):
        run(*within, "ip", *words)
    place = folder / "gluster"
    place.mkdir()
    servers.start([*within, "glusterd", "-N", "-p", f"{folder}/glusterd.pid", "-l", f"{folder}/glusterd.log"],
                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ask = [*within, "gluster", "--mode=script", "volume"]
    deadline = time.monotonic() + 30
    while run(*ask, "list", check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit("files.py: glusterd does not answer")
        time.sleep(0.2)
    bricks = [f"{address}:{folder}/brick{index}" for index in range(3)]
    run(*ask, "create", "bench", "disperse", "3", "redundancy", "1", *bricks, "force")
    servers.callback(run, *ask, "delete", "bench", check=False)
    run(*ask, "start", "bench")
    servers.callback(run, *ask, "stop", "bench", "force", check=False)
    # In the namespace of the server's network alone, and in everybody's of mounts.
    run("nsenter", f"--net=/var/run/netns/{space}", "mount", "-t", "glusterfs", f"{address}:/bench", str(place))
    servers.callback(run, "umount", "-l", str(place), check=False)
    return place


def fio(place, way, size, seconds):
    command = ["fio", "--name=one", f"--filename={place}/data", f"--rw={way}", f"--bs={size}", f"--size={FILE_BYTES}",
               "--direct=1", "--ioengine=psync", "--time_based", f"--runtime={seconds}", "--output-format=json", "--fallocate=none",
               "--allow_file_create=0", "--randrepeat=0", "--norandommap"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + 10 * seconds)
    if done.returncode:
        sys.exit(f"files.py: fio failed on {place}: {done.stdout[-500:]}{done.stderr[-500:]}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    side = job["write" if "write" in way else "read"]
    took, operations, latency = side["runtime"] / 1e3, side["total_ios"], side["clat_ns"]
    at = {name: latency["percentile"][name] / 1e3 for name in ("50.000000", "99.000000", "99.900000")}
    return {"operations": operations, "seconds": took, "rate": operations / took, "p50_us": at["50.000000"],
            "p99_us": at["99.000000"], "p999_us": at["99.900000"], "max_us": latency["max"] / 1e3,
            "client_cpu_us": (job["usr_cpu"] + job["sys_cpu"]) / 100 * took * 1e6 / max(operations, 1), "server_cpu_us": None}


def timed(operations, work):
    """What took a while in all: each operation as long as the others."""
    begun = time.monotonic()
    work()
    took = time.monotonic() - begun
    each = took * 1e6 / operations
    return {"operations": operations, "seconds": took, "rate": operations / took, "p50_us": each, "p99_us": each,
            "p999_us": each, "max_us": each, "client_cpu_us": 0.0, "server_cpu_us": None}


def programs(place, archive, repository, count):
    """What people do with a tree of so many files: samples by name."""
    def run(*command):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    tree, small = place / "tree", place / "small"
    tree.mkdir()
    small.mkdir()
    names = [small / f"file {number}" for number in range(SMALL_FILES)]
    samples = {
        "untar": timed(count, lambda: run("tar", "-xf", archive, "-C", tree)),
        "find": timed(count, lambda: run("find", tree, "-type", "f", "-size", "+3k")),
        "clone": timed(count, lambda: run("git", "clone", "--quiet", "--no-hardlinks", repository, place / "clone")),
        "create": timed(SMALL_FILES, lambda: [name.write_bytes(b"a few bytes") for name in names]),
        "stat": timed(SMALL_FILES, lambda: [name.stat() for name in names]),
        "unlink": timed(SMALL_FILES, lambda: [name.unlink() for name in names]),
    }
    for folder in (tree, small, place / "clone"):
        shutil.rmtree(folder)
    return samples


def measured(options, folder):
    archive, repository = folder / "tree.tar", folder / "repository"
    subprocess.run(["git", "-C", HERE, "archive", "--output", archive, "HEAD"], check=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", "--depth=50", f"file://{HERE}", repository], check=True)
    count = len(subprocess.run(["tar", "-tf", archive], check=True, capture_output=True, text=True).stdout.splitlines())
    with row.Servers() as servers:
        (folder / "local").mkdir()
        places = {"Yagura, mounted": ours(servers, options.yagura, folder), "a local directory": folder / "local"}
        conditions = []
        if shutil.which("glusterd"):
            places["GlusterFS 2+1"] = gluster(servers, folder)
        else:
            conditions.append("GlusterFS is not installed, and left out")
        for place in places.values():
            with open(place / "data", "wb") as file:
                for _ in range(FILE_BYTES >> 20):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        samples = {}
        for number in range(options.rounds):
            for side, place in places.items():
                for name, way, size in ACCESSES:
                    print(f"\rround {number + 1} of {options.rounds}: {name}, {side}     ", end="", file=sys.stderr, flush=True)
                    samples.setdefault((name, side), []).append(fio(place, way, size, options.seconds))
                for name, sample in programs(place, archive, repository, count).items():
                    samples.setdefault((name, side), []).append(sample)
        print(file=sys.stderr)
    kinds = list(dict.fromkeys(name for name, _ in samples))
    us, local, *peers = places
    ratios = [row.ratio(f"{name}: rate / local", samples[name, us], samples[name, local], "rate", ("at_least", 0.9)) for name in kinds]
    ratios += [row.ratio(f"{name}: rate / {peer}", samples[name, us], samples[name, peer], "rate", ("at_least", 2.0))
               for peer in peers for name in kinds]
    sides = [{"name": f"{name}: {side}", "rounds": rounds} for (name, side), rounds in samples.items()]
    return {"row": "B14", "title": "files on a mount, beside a local directory and GlusterFS",
            "conditions": [f"{os.cpu_count()} cores shared by programs, mounts and servers; all bytes on one disk",
                           f"fio: one at a time, past the page cache, over {FILE_BYTES >> 20} MiB, {options.seconds} s each",
                           f"a tree of {count} entries, {SMALL_FILES} small files; ours: names in memory of three targets",
                           f"{options.rounds} rounds by turns", *conditions],
            "sides": sides, "ratios": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("yagura", type=lambda text: str(pathlib.Path(text).resolve()))
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("files.py: mounting wants root")
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output) as folder:
        row.tell(measured(options, pathlib.Path(folder).resolve()), options.output)


if __name__ == "__main__":
    main()
