#!/usr/bin/env python3
"""Row B3 from what guest/tests/figures.sh left: b3.py FIGURES OUTPUT. Writes OUTPUT/B3.json, in the form of `yagura bench`."""
import json
import pathlib
import statistics
import sys

CASES = [(what, way, depth) for what in ("target", "host") for way in ("read", "write") for depth in (1, 32)]
NAMES = {"target": ("our target, kernel initiator", "kernel target, kernel initiator"),
         "host": ("our host, kernel target", "kernel initiator, kernel target")}


def fio_sample(path, way):
    """One round of fio. It may print notes before the JSON."""
    text = path.read_text()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    side, seconds = job[way], job[way]["runtime"] / 1e3
    latency = side["lat_ns"]
    at = {name: latency["percentile"][name] / 1e3 for name in ("50.000000", "99.000000", "99.900000")}
    operations = side["total_ios"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return {"operations": operations, "seconds": seconds, "rate": operations / seconds, "p50_us": at["50.000000"],
            "p99_us": at["99.000000"], "p999_us": at["99.900000"], "max_us": latency["max"] / 1e3,
            "client_cpu_us": cpu * seconds * 1e6 / max(operations, 1), "server_cpu_us": None}


def our_sample(path):
    """One round of `yagura bench remote`."""
    return json.loads(path.read_text())[0]["sides"][0]["rounds"][0]


def sample(path, what, who, way):
    return our_sample(path) if (what, who) == ("host", "ours") else fio_sample(path, way)


def rounds(figures, what, way, depth, who):
    paths = sorted(figures.glob(f"{what}-{way}-{depth}.{who}.*.json"))
    if not paths:
        sys.exit(f"b3.py: no figures of {what}-{way}-{depth}.{who} in {figures}: did guest/tests/figures.sh end?")
    return [sample(path, what, who, way) for path in paths]


def main(figures, output):
    sides, ratios = [], []
    for what, way, depth in CASES:
        pair = [rounds(figures, what, way, depth, who) for who in ("ours", "kernel")]
        case = f"{way}, depth {depth}"
        sides += [{"name": f"{case}: {name}", "rounds": side} for name, side in zip(NAMES[what], pair)]
        figure = "p50_us" if depth == 1 else "rate"
        each = [ours[figure] / kernels[figure] for ours, kernels in zip(*pair)]
        medians = [statistics.median(s[figure] for s in side) for side in pair]
        ratios.append({"name": f"our {what} / the kernel's: {case}: {figure}", "median": medians[0] / medians[1],
                       "low": min(each), "high": max(each), "aim": None})
    row = {"row": "B3", "title": "our target and our host beside the Linux kernel's (emulated)",
           "conditions": ["inside one guest under emulation (QEMU TCG, 2 cores): compare only with each other",
                          "4 KiB random accesses, memory on both sides, NVMe/TCP over loopback, one I/O queue",
                          "kernel initiator: fio, libaio, direct; our host: yagura bench remote"],
           "sides": sides, "ratios": ratios}
    output.mkdir(parents=True, exist_ok=True)
    (output / "B3.json").write_text(json.dumps(row, indent=2))
    print(row["row"], "·", row["title"])
    for ratio in ratios:
        print(f"  {ratio['name']} = {ratio['median']:.3f} [{ratio['low']:.3f} .. {ratio['high']:.3f}]  reported")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: b3.py FIGURES OUTPUT")
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
