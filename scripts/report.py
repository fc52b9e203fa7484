#!/usr/bin/env python3
"""All ratios of a folder of rows (`yagura bench … --output`) as one page of Markdown: report.py FOLDER."""
import json
import pathlib
import sys

WORDS = {"at_most": ("≤", lambda median, aim: median <= aim), "at_least": ("≥", lambda median, aim: median >= aim)}


def line(ratio):
    text = f"{ratio['median']:.3g} [{ratio['low']:.3g} .. {ratio['high']:.3g}]"
    if ratio["aim"] is None:
        return f"| {ratio['name']} | {text} | |"
    sign, is_met = WORDS[ratio["aim"][0]]
    met = is_met(ratio["median"], ratio["aim"][1])
    return f"| {ratio['name']} | {text if met else f'**{text}**'} | {sign} {ratio['aim'][1]:g} |"


def main(folder):
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not rows:
        sys.exit(f"report.py: no rows in {folder}; run: make bench")
    print("# Figures\n\nRatios of medians [least .. greatest round]; what misses its aim is bold.")
    for row in rows:
        print(f"\n## {row['row']} · {row['title']}\n")
        print("\n".join(f"- {condition}" for condition in row["conditions"]))
        print("\n| ratio | median [spread] | aim |\n|---|---|---|")
        print("\n".join(line(ratio) for ratio in row["ratios"]))
        if row["sides"]:
            print("\n| side, median of rounds | per second | p50 µs | p99 µs | p99.9 µs | CPU µs an operation, asking and answering |")
            print("|---|---|---|---|---|---|")
        for side in row["sides"]:
            at = {key: sorted(r[key] or 0 for r in side["rounds"])[len(side["rounds"]) // 2] for key in side["rounds"][0]}
            server = f" + {at['server_cpu_us']:.2f}" if at["server_cpu_us"] else ""
            print(f"| {side['name']} | {at['rate']:.0f} | {at['p50_us']:.2f} | {at['p99_us']:.2f} | {at['p999_us']:.2f} "
                  f"| {at['client_cpu_us']:.2f}{server} |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: report.py FOLDER")
    main(pathlib.Path(sys.argv[1]))
