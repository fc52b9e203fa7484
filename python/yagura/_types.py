"""What goes in and comes out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NewType, Optional, Sequence, TypeVar, Union

from ._errors import UsageError

#: A key; text is taken as UTF-8.
Key = Union[str, bytes]
#: A value to store; text is taken as UTF-8.
Value = Union[str, bytes, bytearray, memoryview]
#: Which change of a key a value came by; opaque, and may be kept as text.
Version = NewType("Version", str)

R = TypeVar("R")
#: As the core has a value: bytes, version, expiry in milliseconds, tag.
Raw = tuple[bytes, str, Optional[int], int]


class Versioned(NamedTuple):
    """A value as it was found."""

    value: bytes
    version: Version
    #: When it ends, in seconds as ``time.time()`` has them; ``None``: never.
    expires_at: Optional[float]
    #: What it is, as it was put; 0: plain bytes.
    tag: int


class Entry(NamedTuple):
    """A key of a scan."""

    key: bytes
    value_length: int


@dataclass(frozen=True)
class Keep(Generic[R]):
    """An update that leaves the key as it is."""

    result: R


@dataclass(frozen=True)
class Put(Generic[R]):
    """An update that sets the key."""

    value: Value
    result: R
    expires_at: Optional[float] = None
    expires_in: Optional[float] = None
    tag: int = 0


@dataclass(frozen=True)
class Delete(Generic[R]):
    """An update that removes the key."""

    result: R


Change = Union[Keep[R], Put[R], Delete[R]]


@dataclass(frozen=True)
class Security:
    """Name and keys of this host. Keys stand in files that nobody but their owner may read."""

    #: Name of this host (NQN), as targets know it; needed with any key.
    host_nqn: Optional[str] = None
    #: File with the key by which this host authenticates itself (DH-HMAC-CHAP).
    dhchap_key_file: Optional[str] = None
    #: File with the key by which the target has to authenticate itself.
    dhchap_ctrl_key_file: Optional[str] = None
    #: Connect over TLS 1.3, with a key that the authentication makes anew for each association.
    concat: bool = False
    #: Connect over TLS 1.3, with the pre-shared key in this file.
    tls_key_file: Optional[str] = field(default=None)
    #: Version of the identity under which that key is offered: 0 for targets that know no other.
    tls_identity: int = 1
    #: Derive keys as nvme-cli before 2.14 does.
    tls_legacy: bool = False


def as_bytes(data: Union[Key, Value]) -> bytes:
    """Bytes of a key or value."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise UsageError(f"a {type(data).__name__} is neither text nor bytes")


def as_expiry(expires_at: Optional[float], expires_in: Optional[float]) -> Optional[int]:
    """The expiry in Unix milliseconds."""
    if expires_at is not None and expires_in is not None:
        raise UsageError("give either expires_at or expires_in")
    if expires_in is not None:
        expires_at = time.time() + expires_in
    return None if expires_at is None else max(1, round(expires_at * 1000))


def as_versioned(raw: Optional[Raw]) -> Optional[Versioned]:
    """What the core found."""
    if raw is None:
        return None
    value, version, expiry, tag = raw
    return Versioned(value, Version(version), None if expiry is None else expiry / 1000, tag)


def as_addresses(addresses: Union[str, Sequence[str]]) -> list[str]:
    """A list of addresses."""
    if isinstance(addresses, str):
        addresses = addresses.split(",")
    return [address.strip() for address in addresses if address.strip()]
