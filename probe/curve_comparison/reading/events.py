"""TensorBoard's event files: records with checksums, each a small protobuf message."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from probe.curve_comparison.reading.series import Collector, RunCurves
from probe.errors import FormatError

TENSORBOARD = "TensorBoard events"
_HEAD = struct.Struct("<QI")
_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9
"""numbers of TensorFlow's DataType"""
_FORMATS = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}
_MOST_CHECKED = 1 << 16
"""bytes of a record that may be a scalar; larger ones are images and the like"""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of a record: CRC-32C, rotated and shifted as the format of TFRecord files wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def is_event_file(head: bytes) -> bool:
    """Tell an event file by its first bytes: a length and the checksum of that length."""
    return len(head) >= _HEAD.size and _HEAD.unpack_from(head)[1] == masked_crc32c(head[:8])


def read_events(path: Path, files: list[Path]) -> RunCurves:
    """Return the scalars of the event files of one run.

    Parameters
    ----------
    path
        what the user named: one of the files, or their folder
    files
        in the order in which they were written

    Raises
    ------
    FormatError
        a record is damaged, or no scalar is there
    """
    found, notes = Collector(), []
    for file in files:
        records = _records(file, file.read_bytes(), notes)
        for offset, record in records:
            try:
                _take(found, record)
            except (IndexError, struct.error, UnicodeDecodeError) as error:
                raise FormatError(f"{file}, byte {offset}: not an event of TensorBoard ({error})") from None
    if not found:
        raise FormatError(f"{path}: its events hold no scalar; expected loss, grad-norm, learning-rate …")
    return found.curves(path, TENSORBOARD, tuple(notes))


def _records(file: Path, data: bytes, notes: list[str]) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        end = at + _HEAD.size
        length = _HEAD.unpack_from(data, at)[0] if end <= len(data) else 0
        if end > len(data) or (end + length + 4 > len(data) and is_event_file(data[at:end])):
            notes.append(f"{file.name} ends inside a record, which is left out: it is still written, or was cut off")
            return
        if not is_event_file(data[at:end]):
            raise FormatError(f"{file}, byte {at}: the checksum of a record's length is wrong; the file is damaged")
        record = data[end : end + length]
        if length <= _MOST_CHECKED:
            if struct.unpack_from("<I", data, end + length)[0] != masked_crc32c(record):
                raise FormatError(f"{file}, byte {end}: the checksum of a record is wrong; the file is damaged")
            yield at, record
        at = end + length + 4


def _fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, wire type, value) of every field of a message; fixed-size values as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise IndexError(f"wire type {wire}")
        if at + size > len(message):
            raise IndexError("a field is longer than its message")
        yield number, wire, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _take(found: Collector, record: bytes) -> None:
    """Take the scalars of an Event: its step (2) and summary (5)."""
    step, summaries = 0, []
    for number, wire, value in _fields(record):
        if (number, wire) == (2, _VARINT):
            step = value - (1 << 64) if value >> 63 else value
        elif (number, wire) == (5, _BYTES):
            summaries.append(value)
    for summary in summaries:
        for number, wire, value in _fields(summary):
            if (number, wire) == (1, _BYTES):
                tag, scalar = _scalar(value)
                if scalar is not None:
                    found.add(step, tag, scalar)


def _scalar(message: bytes) -> tuple[str, float | None]:
    """Return tag (1) and number of a Summary.Value: its simple_value (2), or its tensor (8) of one element."""
    tag, scalar = "", None
    for number, wire, value in _fields(message):
        if (number, wire) == (1, _BYTES):
            tag = value.decode()
        elif (number, wire) == (2, _FIXED32):
            scalar = struct.unpack("<f", value)[0]
        elif (number, wire) == (8, _BYTES):
            scalar = _of_tensor(value)
    return tag, scalar


def _of_tensor(message: bytes) -> float | None:
    """Return the number of a TensorProto of one element: from its content (4), float_val (5) or double_val (6)."""
    dtype, found = 0, None
    for number, wire, value in _fields(message):
        if (number, wire) == (1, _VARINT):
            dtype = value
        elif (number, wire) == (4, _BYTES) and dtype in _FORMATS and len(value) == struct.calcsize(_FORMATS[dtype]):
            found = float(struct.unpack(_FORMATS[dtype], value)[0])
        elif number in (5, 6) and wire in (_BYTES, _FIXED32, _FIXED64) and len(value) == (4 if number == 5 else 8):
            found = struct.unpack("<f" if number == 5 else "<d", value)[0]
    return found
