#!/usr/bin/env python3
"""The rows of a folder (`yagura bench … --output`) as one page of Markdown: report.py [--short] FOLDER.

--short: the page that is shown, docs/figures.md: ratios alone, with a word of explanation from bench/notes/ROW.md where there is one."""
import json
import pathlib
import re
import sys

NOTES = pathlib.Path(__file__).resolve().parent.parent / "bench" / "notes"
WORDS = {"at_most": ("≤", lambda median, aim: median <= aim), "at_least": ("≥", lambda median, aim: median >= aim)}


def is_met(ratio):
    return ratio["aim"] is None or WORDS[ratio["aim"][0]][1](ratio["median"], ratio["aim"][1])


def line(ratio):
    text = f"{ratio['median']:.3g} [{ratio['low']:.3g} .. {ratio['high']:.3g}]"
    aim = "" if ratio["aim"] is None else f"{WORDS[ratio['aim'][0]][0]} {ratio['aim'][1]:g}"
    return f"| {ratio['name']} | {text if is_met(ratio) else f'**{text}**'} | {aim} |"


def sides(row):
    yield "\n| side, median of rounds | per second | p50 µs | p99 µs | p99.9 µs | CPU µs an operation, asking and answering |"
    yield "|---|---|---|---|---|---|"
    for side in row["sides"]:
        at = {key: sorted(r[key] or 0 for r in side["rounds"])[len(side["rounds"]) // 2] for key in side["rounds"][0]}
        server = f" + {at['server_cpu_us']:.2f}" if at["server_cpu_us"] else ""
        yield (f"| {side['name']} | {at['rate']:.0f} | {at['p50_us']:.2f} | {at['p99_us']:.2f} | {at['p999_us']:.2f} "
               f"| {at['client_cpu_us']:.2f}{server} |")


def noted(name):
    path = NOTES / f"{name}.md"
    return [path.read_text().strip()] if path.exists() else []


def section(row, is_short):
    yield f"\n## {row['row']} · {row['title']}\n"
    yield from (f"- {condition}" for condition in row["conditions"])
    yield "\n| ratio | median [spread] | aim |\n|---|---|---|"
    yield from map(line, row["ratios"])
    if row["sides"] and not is_short:
        yield from sides(row)
    yield from (f"\n{text}" for text in noted(row["row"]) if is_short)


def main(folder, is_short):
    # B2 before B15.
    paths = sorted(folder.glob("*.json"), key=lambda path: [part.zfill(4) for part in re.split(r"(\d+)", path.stem)])
    rows = [json.loads(path.read_text()) for path in paths]
    if not rows:
        sys.exit(f"report.py: no rows in {folder}; run: make bench")
    aimed = [ratio for row in rows for ratio in row["ratios"] if ratio["aim"] is not None]
    print("# Figures\n\nRatios of medians [least .. greatest round]; what misses its aim is bold: "
          f"{sum(map(is_met, aimed))} of {len(aimed)} aims are met." + (" Made by `make figures`." if is_short else ""))
    for text in noted("README") if is_short else []:
        print(f"\n{text}")
    for row in rows:
        print("\n".join(section(row, is_short)))


if __name__ == "__main__":
    flags = [word for word in sys.argv[1:] if word == "--short"]
    folders = [word for word in sys.argv[1:] if word not in flags]
    if len(folders) != 1:
        sys.exit("usage: report.py [--short] FOLDER")
    main(pathlib.Path(folders[0]), bool(flags))
