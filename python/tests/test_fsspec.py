"""Files by fsspec: what its own tests ask of every file system, and what this one promises."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Iterator

import fsspec
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from conftest import Pool
from fsspec.tests import abstract
from yagura._fsspec import YaguraFileSystem


@pytest.fixture(scope="session")
def tree(pool: Pool) -> YaguraFileSystem:
    """A file system for all tests."""
    pool.make_files("tree")
    made = fsspec.filesystem("yagura", name="tree", pool=pool.addresses[0], auto_mkdir=True)
    assert isinstance(made, YaguraFileSystem)
    return made


@pytest.fixture
def fs(tree: YaguraFileSystem) -> Iterator[YaguraFileSystem]:
    """The same, empty."""
    yield tree
    for path in tree.ls("/", detail=False):
        tree.rm(path, recursive=True)


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, tree: YaguraFileSystem) -> YaguraFileSystem:
        return tree

    @pytest.fixture
    def fs_path(self, fs: YaguraFileSystem) -> Iterator[str]:
        fs.mkdir("/abstract")
        yield "/abstract"
        fs.rm("/abstract", recursive=True)


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]
    pass


def test_an_address_leads_to_a_file(pool: Pool, fs: YaguraFileSystem) -> None:
    with fsspec.open("yagura://tree/a/b", "wb", pool=pool.addresses[0], auto_mkdir=True) as file:
        file.write(b"lit")
    found, path = fsspec.url_to_fs("yagura://tree/a/b", pool=pool.addresses[0], auto_mkdir=True)
    assert found is fs and path == "/a/b" and fs.cat(path) == b"lit"
    assert fs.unstrip_protocol("/a/b") == "yagura://tree/a/b"
    assert fs.ls("/", detail=False) == ["/a"] and fs.ls("/a/b", detail=False) == ["/a/b"]
    info = fs.info("/a/b")
    assert (info["type"], info["size"], info["uid"], info["nlink"]) == ("file", 3, os.geteuid(), 1)
    now = datetime.now(tz=timezone.utc)
    assert all(abs(at - now) < timedelta(minutes=5) for at in (fs.created("/a/b"), fs.modified("/a/b")))
    assert fs.isdir("/a") and fs.isfile("/a/b") and not fs.exists("/a/b/c") and not fs.exists("/none")
    with pytest.raises(FileNotFoundError, match="file system none"):
        fsspec.filesystem("yagura", name="none", pool=pool.addresses[0])


def test_files_are_seen_whole_or_not_at_all(fs: YaguraFileSystem) -> None:
    fs.pipe("/a", b"before")
    file = fs.open("/a", "wb")
    file.write(bytes(20 << 20))
    assert fs.cat("/a") == b"before", "until it is closed"
    file.close()
    assert fs.size("/a") == 20 << 20

    with pytest.raises(RuntimeError, match="half-way"):
        with fs.open("/a", "wb") as file:
            file.write(bytes(10 << 20))
            raise RuntimeError("half-way")
    with pytest.raises(RuntimeError, match="half-way"):
        with fs.open("/new", "wb") as file:
            raise RuntimeError("half-way")
    file = fs.open("/new", "wb")
    file.write(b"never closed")
    del file
    assert fs.size("/a") == 20 << 20 and [entry["name"] for entry in fs.ls("/")] == ["/a"]

    with fs.transaction:
        with fs.open("/one", "wb") as file:
            file.write(b"1")
        assert not fs.exists("/one"), "until the transaction ends"
    assert fs.cat("/one") == b"1"
    with fs.open("/exclusive", "xb") as file:
        file.write(b"mine")
    with pytest.raises(FileExistsError):
        fs.open("/exclusive", "xb")
    with pytest.raises(FileExistsError):
        fs.pipe_file("/exclusive", b"", mode="create")
    assert fs.cat("/exclusive") == b"mine"


def test_bytes_are_read_where_they_are_asked_for(fs: YaguraFileSystem) -> None:
    data = os.urandom(17_000_000)
    fs.pipe("/data", data)
    assert fs.cat("/data") == data
    for start, end in [(0, 10), (5_000_000, 12_000_001), (-5, None), (None, -16_999_990), (None, None), (20, 10)]:
        assert fs.cat_file("/data", start, end) == data[start:end], (start, end)
    assert fs.cat_file("/data", 16_999_999, 99_000_000) == data[-1:]
    with fs.open("/data", "rb") as file:
        file.seek(-100, 2)
        assert file.read() == data[-100:] and file.read() == b""
        file.seek(9_000_000)
        assert file.read(3_000_000) == data[9_000_000:12_000_000] and file.tell() == 12_000_000
    starts = list(range(0, 17_000_000, 170_000))
    ranges = fs.cat_ranges(["/data"] * 100, starts, [start + 1000 for start in starts])
    assert ranges == [data[start : start + 1000] for start in starts]
    missing = fs.cat_ranges(["/none", "/data"], 0, 3)
    assert isinstance(missing[0], FileNotFoundError) and missing[1] == data[:3]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/none"], [0], [1], on_error="raise")

    # Behind the end, wherever others have put that.
    with fs.open("/log", "ab") as file:
        file.write(b"one ")
    with fs.open("/log", "ab") as file:
        assert file.tell() == 4
        file.write(b"two")
    assert fs.cat("/log") == b"one two"
    with fs.open("/lines", "w") as text:
        text.write("a\nb\n")
    with fs.open("/lines", "r") as text:
        assert list(text) == ["a\n", "b\n"]


def test_names_are_made_moved_and_removed(fs: YaguraFileSystem, tmp_path: Path) -> None:
    fs.makedirs("/a/b/c")
    with pytest.raises(FileExistsError):
        fs.makedirs("/a/b/c")
    fs.makedirs("/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.mkdir("/a")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/x/y", create_parents=False)
    fs.pipe({"/a/one": b"1", "/a/b/two": b"2"})
    fs.mv("/a/b", "/a/d")
    assert fs.find("/") == ["/a/d/two", "/a/one"] and fs.isdir("/a/d/c")
    fs.mv("/a/one", "/a/d")
    assert fs.cat("/a/d/one") == b"1"
    fs.cp_file("/a/d/one", "/a/d/two")
    assert fs.cat("/a/d/two") == b"1"
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("/a")
    with pytest.raises(IsADirectoryError):
        fs.open("/a", "wb")
    with pytest.raises(OSError, match="255 bytes"):
        fs.pipe("/" + "n" * 256, b"")
    strange = os.fsdecode(b"\xff name")
    fs.pipe(f"/{strange}", b"bytes")
    assert f"/{strange}" in fs.ls("/", detail=False) and fs.cat(f"/{strange}") == b"bytes"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(b"put")
    fs.put(str(tmp_path / "in"), "/put", recursive=True)
    fs.get("/put", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out" / "file").read_bytes() == b"put"
    before = fs.modified("/put/file")
    fs.touch("/put/file", truncate=False)
    assert fs.modified("/put/file") > before and fs.cat("/put/file") == b"put"
    fs.rm("/a", recursive=True)
    assert not fs.exists("/a")
    room, free = fs.usage()
    assert 0 < free < room


def test_what_the_command_line_has_made_is_seen(pool: Pool, fs: YaguraFileSystem, tmp_path: Path) -> None:
    """Symbolic links among it, which are followed, and removed themselves."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "file").write_bytes(b"lit")
    (tmp_path / "t" / "link").symlink_to("file")
    (tmp_path / "t" / "dangling").symlink_to("none")
    (tmp_path / "t" / "up").symlink_to("..")
    line = [pool.binary, "file", "cp", "-r", str(tmp_path / "t"), "tree:", "--pool", pool.addresses[0]]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    told = {entry["name"]: entry for entry in fs.ls("/t")}
    assert (told["/t/link"]["type"], told["/t/link"]["size"], told["/t/link"]["destination"]) == ("file", 3, "file")
    assert told["/t/dangling"]["type"] == "other" and fs.cat("/t/link") == b"lit"
    assert fs.isdir("/t/up") and fs.find("/") == ["/t/dangling", "/t/file", "/t/link", "/t/up"]
    fs.rm_file("/t/link")
    fs.pipe("/beside", b"")
    fs.rm("/t", recursive=True)
    assert fs.ls("/", detail=False) == ["/beside"]


def test_a_child_of_fork_connects_anew(fs: YaguraFileSystem) -> None:
    fs.pipe("/parent", b"1")
    child = os.fork()
    if child == 0:
        try:
            fs.pipe("/child", fs.cat("/parent") + b"2")
            status = 0
        except BaseException:
            status = 1
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fs.cat("/child") == b"12"


def test_a_program_that_ends_leaves_good_order(pool: Pool, fs: YaguraFileSystem) -> None:
    program = (
        "import fsspec, sys\n"
        "fs = fsspec.filesystem('yagura', name='tree', pool=sys.argv[1])\n"
        "fs.pipe('/whole', b'1')\n"
        "file = fs.open('/half', 'wb')\n"
        "file.write(b'2')\n"
    )
    subprocess.run([sys.executable, "-c", program, pool.addresses[0]], check=True, timeout=60)
    assert fs.ls("/", detail=False) == ["/whole"]


def test_parquet(fs: YaguraFileSystem) -> None:
    table = pyarrow.table({"number": range(100_000), "text": [str(number % 7) for number in range(100_000)]})
    pyarrow.parquet.write_table(table, "/table.parquet", filesystem=fs)
    assert pyarrow.parquet.read_table("/table.parquet", filesystem=fs).equals(table)
    some = pyarrow.parquet.read_table("/table.parquet", filesystem=fs, columns=["number"])
    assert some.column_names == ["number"]
    pyarrow.dataset.write_dataset(table, "/set", format="parquet", partitioning=["text"], filesystem=fs)
    read = pyarrow.dataset.dataset("/set", format="parquet", partitioning=["text"], filesystem=fs).to_table()
    assert read.num_rows == 100_000 and sorted(read["number"].to_pylist()) == list(range(100_000))


def test_a_file_of_too_many_lost_members_is_told(own_pool: Pool) -> None:
    targets = own_pool.make_files("own")
    fs: Any = fsspec.filesystem("yagura", name="own", pool=own_pool.addresses[0], skip_instance_cache=True)
    data = os.urandom(3_000_000)
    fs.pipe({"/large": data, "/small": b"in the inode"})
    targets[0].kill()
    assert fs.cat("/large") == data, "one of three is away"
    targets[1].kill()
    with pytest.raises(OSError, match="can't be read"):
        fs.cat("/large")
    assert fs.cat("/small") == b"in the inode"
