"""What the scripts that make rows of figures share: programs that end with them, and rows in the form of `yagura bench`."""
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys


class Servers(contextlib.ExitStack):
    """Programs that run until the block ends."""

    def start(self, command, **options):
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        self.callback(self.end, child)
        return child

    @staticmethod
    def end(child):
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def ready(self, command):
        """Starts one of ours; what it says of itself once it serves."""
        child = self.start(command, stdout=subprocess.PIPE, text=True)
        text, decoder = "", json.JSONDecoder()
        for line in child.stdout:
            text += line
            with contextlib.suppress(json.JSONDecodeError):
                return decoder.raw_decode(text)[0]
        sys.exit(f"{command[:2]} ended before it served")

    def pool(self, yagura, name, namespaces):
        """A pool of targets with these namespaces: their addresses."""
        members = []
        for index, namespace in enumerate(namespaces):
            target = self.ready([yagura, "target", "--listen", "127.0.0.1:0", "--json", "--nqn",
                                 f"nqn.2026-11.io.yagura:{name}-{index}", "--namespace", namespace])
            members.append(target["listening"])
        create = [yagura, "pool", "create", "--replicas", str(len(members))]
        subprocess.run(create + [word for member in members for word in ("--member", member)], check=True,
                       stdout=subprocess.DEVNULL)
        return members


def ratio(name, ours, theirs, figure, aim=None):
    """Ours over theirs, round by round."""
    each = [a[figure] / b[figure] for a, b in zip(ours, theirs)]
    median = statistics.median(a[figure] for a in ours) / statistics.median(b[figure] for b in theirs)
    return {"name": name, "median": median, "low": min(each), "high": max(each), "aim": aim}


def tell(result, output):
    """Writes a row into a folder, and says its ratios."""
    output = pathlib.Path(output)
    (output / f"{result['row']}.json").write_text(json.dumps(result, indent=2))
    print(result["row"], "·", result["title"])
    for one in result["ratios"]:
        aim = "reported" if one["aim"] is None else f"aim {one['aim'][0].replace('_', ' ')} {one['aim'][1]:g}"
        print(f"  {one['name']} = {one['median']:.3f} [{one['low']:.3f} .. {one['high']:.3f}]  {aim}")
