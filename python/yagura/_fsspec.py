"""Files for programs that use fsspec (pandas, pyarrow, …): ``yagura://NAME/path``. Needs ``fsspec``; the rest of the package
does not."""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Optional, Sequence, Type, Union, cast

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import stringify_path

from ._client import connector
from ._errors import Error, UsageError
from ._types import Security
from ._yagura import Core, Files

#: Kind, permissions, owner, group, names, inode, size, times, where a link leads.
Told = tuple[str, int, int, int, int, int, int, float, float, Optional[bytes]]

#: Bytes that are gathered before they are written: what one record of the pool maps.
BLOCK_BYTES = 8 << 20


def _end(files: Files, core: Core, process: int) -> None:
    """Leaves the file system in good order, unless it is another process's."""
    if os.getpid() == process:
        # A pool that has gone before has nothing left to be put in order.
        with suppress(OSError, Error):
            files.close(None)
        with suppress(Error):
            core.close(None)


class YaguraFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A file system of a pool.

    ::

        fs = fsspec.filesystem("yagura", name="tree", pool="10.0.0.1:4420")
        table = pandas.read_parquet("yagura://tree/a.parquet", storage_options={"pool": "10.0.0.1:4420"})

    A file that is written gets its name when it is closed, and only then: who opens the name sees what was there before, or the
    whole. Never closed, or left by an exception out of ``with fs.open(path, "wb")``, it is given up; ``fsspec.open`` and text
    modes close it then as if it were whole. What a child of ``os.fork`` does with it goes over connections
    of its own. Permissions are not asked.
    """

    protocol = "yagura"
    root_marker = "/"

    def __init__(
        self,
        name: str,
        pool: Union[str, Sequence[str]],
        *,
        pool_id: Optional[str] = None,
        security: Optional[Security] = None,
        timeout: Optional[float] = None,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        """
        :param name: the file system; of ``yagura://NAME/path`` it is NAME.
        :param pool: addresses of members of the pool (``host:port``), or of one.
        :param pool_id: the pool that is meant, if members of several are at the addresses.
        :param security: as of :class:`yagura.Client`.
        :param timeout: seconds an operation may take; by default it ends when the pool gives up.
        :param auto_mkdir: make directories that a file is to be in.
        """
        super().__init__(**options)
        self.name = name
        self.auto_mkdir = auto_mkdir
        self._connect = connector(pool, 1, None, timeout, False, pool_id, security)
        self._process = 0
        self._opened: Optional[Files] = None
        self._files  # a wrong address is told now

    @property
    def _files(self) -> Files:
        if self._opened is None or self._process != os.getpid():
            core = cast(Core, self._connect(None))
            opened = cast(Files, core.file_system(self.name, os.geteuid(), os.getegid(), None))
            weakref.finalize(self, _end, opened, core, os.getpid())
            self._opened, self._process = opened, os.getpid()
        return self._opened

    @property
    def fsid(self) -> str:
        """Which file system it is."""
        return f"yagura_{self.name}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("yagura://"):
            path = "/" + path[len("yagura://") :].partition("/")[2]
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        if not path.startswith("yagura://"):
            return {}
        name = path[len("yagura://") :].partition("/")[0]
        return {"name": name} if name else {}

    def unstrip_protocol(self, name: str) -> str:
        """The address of a path."""
        return f"yagura://{self.name}{self._strip_protocol(name)}"

    def _bytes(self, path: Any) -> bytes:
        return os.fsencode(self._strip_protocol(path))

    def _entry(self, path: str, told: Told) -> dict[str, Any]:
        kind, mode, uid, gid, links, inode, size, modified, created, target = told
        entry = {
            "name": path,
            "size": 0 if kind == "directory" else size,
            "type": kind,
            "mode": mode,
            "uid": uid,
            "gid": gid,
            "ino": inode,
            "nlink": links,
            "mtime": modified,
            "created": created,
            "islink": target is not None,
        }
        if target is not None:
            entry["destination"] = os.fsdecode(target)
        return entry

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        """What is told of a path; of a symbolic link, what is told of where it leads."""
        path = self._strip_protocol(path)
        return self._entry(path, cast(Told, self._files.info(os.fsencode(path), None)))

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        """What is in a directory, by name; of a file, itself."""
        path = self._strip_protocol(path)
        try:
            listed = cast("list[tuple[bytes, Told]]", self._files.list(os.fsencode(path), None))
        except NotADirectoryError:
            entries = [self.info(path)]
        else:
            above = path.rstrip("/")
            entries = [self._entry(f"{above}/{os.fsdecode(name)}", told) for name, told in listed]
            for entry in entries:
                # Whoever goes over a tree does not go by links: they may lead back.
                if entry["islink"] and entry["type"] == "directory":
                    entry["type"] = "other"
        return entries if detail else [entry["name"] for entry in entries]

    def exists(self, path: Any, **_: Any) -> bool:
        """Whether a path leads to something."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def created(self, path: Any) -> datetime:
        """When a file was made."""
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: Any) -> datetime:
        """When the content of a file changed."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        """Makes a directory, and those above it."""
        if create_parents and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._files.mkdir(self._bytes(path), create_parents, None)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Makes a directory, and those above it."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._files.mkdir(self._bytes(path), True, None)

    def rmdir(self, path: Any) -> None:
        """Removes an empty directory."""
        self._files.rmdir(self._bytes(path), None)

    def rm_file(self, path: Any) -> None:
        """Removes a file."""
        self._files.unlink(self._bytes(path), None)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        """Removes files; directories with all that is in them where it is ``recursive``."""
        if recursive and maxdepth is None:
            # Not by what `find` finds: a link is removed, and not what it leads to.
            for one in self.expand_path(path):
                self._files.remove_all(os.fsencode(one), None)
        else:
            for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                if self.isdir(one):
                    self.rmdir(one)
                else:
                    self.rm_file(one)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: Optional[int] = None, **_: Any) -> None:
        """Gives a file, or a directory with all that is in it, another name, at once. Into a directory that is there it goes
        under its own name."""
        if isinstance(path1, list) or isinstance(path2, list) or "*" in stringify_path(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(target):
            target = f"{target.rstrip('/')}/{source.rsplit('/', 1)[-1]}"
        elif self.auto_mkdir:
            self.makedirs(self._parent(target), exist_ok=True)
        self._files.rename(os.fsencode(source), os.fsencode(target), None)

    mv_file = mv

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        """Copies a file, or makes a directory as another one is."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.auto_mkdir:
            self.makedirs(self._parent(target), exist_ok=True)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
        else:
            self._files.copy(os.fsencode(source), os.fsencode(target), None)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:
        """Makes an empty file; without ``truncate`` one that is there keeps its bytes, and was changed now."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")
        else:
            self._files.touch(self._bytes(path), None)

    def cat_file(self, path: Any, start: Optional[int] = None, end: Optional[int] = None, **_: Any) -> bytes:
        """The bytes of a file, or some; ends below 0 count from the file's end."""
        [read] = cast("list[Any]", self._files.read_many([(self._bytes(path), start, end)], None))
        if isinstance(read, BaseException):
            raise read
        return cast(bytes, read)

    def cat_ranges(
        self,
        paths: Sequence[Any],
        starts: Any,
        ends: Any,
        max_gap: Optional[int] = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Bytes of many files, or of many places of one, read at once."""
        if max_gap is not None:
            raise NotImplementedError("max_gap: ranges are read as they are asked for")
        count = len(paths)
        starts = [starts] * count if starts is None or isinstance(starts, int) else list(starts)
        ends = [ends] * count if ends is None or isinstance(ends, int) else list(ends)
        if not len(starts) == len(ends) == count:
            raise ValueError("there must be as many starts and ends as paths")
        wanted = [(self._bytes(path), start, end) for path, start, end in zip(paths, starts, ends)]
        read = cast("list[Any]", self._files.read_many(wanted, None))
        if on_error == "raise":
            for one in read:
                if isinstance(one, BaseException):
                    raise one
        return read

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """A file of these bytes; with ``mode="create"`` in place of nothing."""
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        self._files.write_whole(self._bytes(path), bytes(value), mode == "create", None)

    def usage(self) -> tuple[int, int]:
        """Bytes that fit, and that fit besides what is there, about."""
        return cast("tuple[int, int]", self._files.usage(None))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[dict[str, Any]] = None,
        **options: Any,
    ) -> YaguraFile:
        if mode not in {"rb", "wb", "ab", "xb"}:
            raise UsageError(f"mode {mode}: files are opened to be read, written as a whole, or appended to")
        if mode != "rb" and self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        options.setdefault("cache_type", "readahead")
        return YaguraFile(
            self, path, mode, block_size or BLOCK_BYTES, autocommit=autocommit, cache_options=cache_options, **options
        )


class YaguraFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is open."""

    fs: YaguraFileSystem
    closed: bool

    def __init__(self, fs: YaguraFileSystem, path: str, mode: str, *arguments: Any, **options: Any) -> None:
        #: Of the file that is read, and of the one that was begun, with the process and connections that have it.
        self._number: Optional[int] = None
        self._has: Optional[Files] = None
        super().__init__(fs, path, mode, *arguments, **options)
        if mode == "ab":
            self.loc = fs.info(path)["size"] if fs.exists(path) else 0
        elif mode != "rb":
            self._begin()

    def _begin(self) -> None:
        self._has = self.fs._files
        self._number = cast(int, self._has.begin(os.fsencode(self.path), self.mode == "xb", None))

    def _fetch_range(self, start: int, end: int) -> bytes:
        files = self.fs._files
        if self._number is None or self._has is not files:
            self._number, self._has = cast(int, files.open(os.fsencode(self.path), None)), files
        return cast(bytes, files.read_at(self._number, start, end, None))

    def _upload_chunk(self, final: bool = False) -> bool:
        data = self.buffer.getvalue()
        if self.mode == "ab":
            self.fs._files.append(os.fsencode(self.path), data, None)
            return True
        assert self._number is not None and self._has is not None and self.offset is not None
        try:
            self._has.write_at(self._number, self.offset, data, None)
        except BaseException:
            self.discard()
            raise
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """The file gets its name."""
        if self._number is not None and self._has is not None:
            number, self._number = self._number, None
            self._has.finish(number, None)

    def discard(self) -> None:
        """The file goes."""
        if self._number is not None and self._has is not None and self.mode != "ab":
            number, self._number = self._number, None
            self._has.give_up(number, None)

    def close(self) -> None:
        """Closes the file; one that was written gets its name."""
        if not self.closed:
            super().close()
            if self.mode == "rb" and self._number is not None and self._has is not None:
                number, self._number = self._number, None
                if self._has is self.fs._opened and self.fs._process == os.getpid():
                    self._has.close_file(number, None)

    def _abandon(self) -> None:
        if not self.closed and self.mode in {"wb", "xb"}:
            self.closed = True
            if self.fs._process == os.getpid():
                self.discard()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if error is not None:
            self._abandon()
        self.close()

    def __del__(self) -> None:
        # Nobody has said that it is whole.
        try:
            self._abandon()
            self.close()
        except Exception:
            pass  # The connection has gone before it.
