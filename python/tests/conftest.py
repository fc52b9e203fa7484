"""A pool of three targets, each a process of its own. `YAGURA` names the binary."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Iterator

import pytest


class Pool:
    """Three targets with members in memory, and the pool of them."""

    def __init__(self) -> None:
        self.binary = os.environ["YAGURA"]
        self.others: list[subprocess.Popen[str]] = []
        self.targets = [self._target(str(number)) for number in range(3)]
        self.addresses = [self._address(target) for target in self.targets]
        members = [word for address in self.addresses for word in ("--member", address)]
        subprocess.run([self.binary, "pool", "create", *members], check=True, stdout=subprocess.DEVNULL)

    def _target(self, name: str) -> subprocess.Popen[str]:
        nqn = f"nqn.2026-01.example:python-{name}"
        line = [self.binary, "target", "--json", "--listen", "127.0.0.1:0", "--nqn", nqn]
        # A target ends with its standard input, so also when the tests are killed.
        line += ["--namespace", "memory=64MiB", "--until-stdin-closes"]
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @staticmethod
    def _address(target: subprocess.Popen[str]) -> str:
        assert target.stdout is not None
        document = ""
        for line in target.stdout:
            document += line
            if line == "}\n":
                break
        ready = json.loads(document)
        return str(ready.get("listening") or ready["ports"][0]["listening"])

    def make_files(self, name: str) -> list[subprocess.Popen[str]]:
        """Makes a file system on three targets of its own, which end with the pool."""
        targets = [self._target(f"{name}-{number}") for number in range(3)]
        members = [word for target in targets for word in ("--member", self._address(target))]
        line = [self.binary, "file", "create", name, "--pool", self.addresses[0], *members]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        self.others += targets
        return targets

    def kill(self, count: int) -> None:
        """Ends the last targets as a power failure would."""
        for target in self.targets[len(self.targets) - count :]:
            target.kill()
            target.wait()

    def close(self) -> None:
        for target in self.targets + self.others:
            target.kill()
            target.wait()
            for pipe in (target.stdin, target.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The pool of all tests that leave its members alive."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def own_pool() -> Iterator[Pool]:
    """A pool to do harm to."""
    pool = Pool()
    yield pool
    pool.close()
