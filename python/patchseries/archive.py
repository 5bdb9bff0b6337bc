"""Write zip archives that are the same to the byte wherever and whenever they are made.

Members that are taken over from another archive keep their compressed bytes; new ones are stored,
as no two versions of zlib promise the same output. Names are sorted by whoever calls, times and
permission bits are fixed, there are no extra fields. Format: APPNOTE.TXT 6.3.3 of PKWARE, without
zip64.
"""

from __future__ import annotations

import dataclasses
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LOCAL_SIZE = 30
_DATE = (0 << 9 | 1 << 5 | 1, 0)
"""1980-01-01 00:00:00, the first that the format can hold."""

_UNIX, _ZIP20, _UTF8, _LIMIT = 3, 20, 1 << 11, 0xFFFF_FFFF


@dataclasses.dataclass(frozen=True)
class Member:
    """One file of an archive. data: its bytes as `method` (0 stored, 8 deflated) left them."""

    name: str
    data: bytes
    size: int
    crc: int
    method: int
    is_executable: bool = False


def stored(name: str, content: bytes, *, is_executable: bool = False) -> Member:
    """A new member, not compressed."""
    return Member(name, content, len(content), zlib.crc32(content), 0, is_executable)


def taken_over(source: BinaryIO, info: zipfile.ZipInfo) -> Member:
    """A member of another archive with its bytes as they are. source: that archive's file.

    Raises ValueError for a way to compress that is not taken over.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise ValueError(f"{info.filename} is compressed in another way, or encrypted")
    source.seek(info.header_offset)
    header = source.read(_LOCAL_SIZE)
    if header[:4] != _LOCAL:
        raise ValueError(f"{info.filename} has no header")
    name_size, extra_size = struct.unpack("<HH", header[26:30])
    source.seek(info.header_offset + _LOCAL_SIZE + name_size + extra_size)
    data = source.read(info.compress_size)
    is_executable = bool((info.external_attr >> 16) & 0o111)
    return Member(info.filename, data, info.file_size, info.CRC, info.compress_type, is_executable)


def write(path: Path, members: Iterable[Member]) -> None:
    """Write an archive of these members, in this order.

    Raises ValueError for what does not fit into the format without zip64.
    """
    central: list[bytes] = []
    with path.open("wb") as sink:
        for member in members:
            offset = sink.tell()
            name = member.name.encode()
            if max(offset, member.size, len(member.data)) >= _LIMIT:
                raise ValueError(f"{member.name} does not fit: 4 GiB is the limit")
            common = struct.pack(
                "<HHHHHLLLHH",
                _ZIP20,
                0 if name.isascii() else _UTF8,
                member.method,
                _DATE[1],
                _DATE[0],
                member.crc,
                len(member.data),
                member.size,
                len(name),
                0,
            )
            sink.write(_LOCAL + common + name)
            sink.write(member.data)
            mode = (0o100755 if member.is_executable else 0o100644) << 16
            made_by = struct.pack("<BB", _ZIP20, _UNIX)
            rest = struct.pack("<HHHLL", 0, 0, 0, mode, offset)
            central.append(_CENTRAL + made_by + common + rest + name)
        if len(central) >= 0xFFFF:
            raise ValueError("more than 65534 files do not fit")
        start = sink.tell()
        listing = b"".join(central)
        sink.write(listing)
        counts = struct.pack("<HHHHLLH", 0, 0, len(central), len(central), len(listing), start, 0)
        sink.write(_END + counts)
