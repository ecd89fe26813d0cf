"""Changes of bytes and of text, which know nothing of what they change but what hurts readers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

EDGES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9.]*")
_TOKENS = (
    b"-1", b"0", b"1e999", b"-1e-999", b"nan", b"NaN", b"Infinity", b"-inf", b"9" * 30, b"9" * 5000, b"1" + b"0" * 400, b"null", b"true",
    b"~", b"''", b'""', b"[]", b"{}", b"[[", b"}}", b"[" * 3000, b'{"a":' * 3000, b"&a [*a, *a]", b"*a", b"&a", b"<<: *a", b"!!python/object:os.x",
    b"!!binary x", b"!!timestamp 1-1-1", b"0x10", b"0o7", b"1_000", b"1:30", b"? ", b": ", b"- ", b"#", b"|", b">", b"\t", b"\r", b"\n",
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u2028".encode(), "\u0661".encode(), "²".encode(), b'"', b"'", b"," * 50, b";" * 9, b"x" * 140_000, b"{i}", b"{2*i+1}", b"{i/0}",
    b"{i**9**9}", b"*", b"**", b"?", b"!", b"..", b"/etc/passwd", b"%n%s", b"\x1b[2J", b"<script>",
)  # fmt: skip
"""what stands in the place of a number or a word"""


def _places(data: bytearray, rng: random.Random) -> int:
    """Return a place, rather one that is not among zeros."""
    for _ in range(8):
        at = rng.randrange(len(data))
        if data[at]:
            break
    return at


def flip(data: bytearray, rng: random.Random) -> None:
    """Change single bits."""
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        data[_places(data, rng)] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random) -> None:
    """Write a number where one may stand."""
    size = rng.choice((1, 2, 4, 8))
    at = _places(data, rng)
    number = rng.choice((*EDGES, rng.getrandbits(64))) & ((1 << 8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))[: len(data) - at]


def count(data: bytearray, rng: random.Random) -> None:
    """Add a little to a number, as lengths and offsets are."""
    at, size = _places(data, rng), rng.choice((1, 2, 4, 8))
    number = int.from_bytes(data[at : at + size], "little") + rng.choice((-2, -1, 1, 2, 8, 4096))
    data[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")[: len(data) - at]


def cut(data: bytearray, rng: random.Random) -> None:
    """Leave out the end, or some bytes."""
    at = rng.randrange(len(data))
    del data[at : rng.choice((len(data), at + 1, at + rng.randrange(1, 64)))]


def insert(data: bytearray, rng: random.Random) -> None:
    """Put bytes between others."""
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((bytes(rng.randrange(1, 40)), rng.randbytes(rng.randrange(1, 40)), rng.choice(_TOKENS)))


def repeat(data: bytearray, rng: random.Random) -> None:
    """Put a part once more, there or elsewhere."""
    at = rng.randrange(len(data))
    part = bytes(data[at : at + rng.randrange(1, 400)])
    to = rng.choice((at, rng.randrange(len(data))))
    data[to : to + rng.choice((0, len(part)))] = part * rng.choice((1, 1, 2, 50))


def number(data: bytearray, rng: random.Random) -> None:
    """Put something else in the place of a number in text."""
    _replace(data, rng, _NUMBER)


def word(data: bytearray, rng: random.Random) -> None:
    """Put something else in the place of a word in text."""
    _replace(data, rng, _WORD)


def _replace(data: bytearray, rng: random.Random, pattern: re.Pattern[bytes]) -> None:
    found = list(pattern.finditer(data[:100_000]))
    if not found:
        return flip(data, rng)
    chosen, other = rng.choice(found), rng.choice(found)
    data[chosen.start() : chosen.end()] = rng.choice((rng.choice(_TOKENS), rng.choice(_TOKENS), other[0]))


def line(data: bytearray, rng: random.Random) -> None:
    """Leave out, double, move or indent a line."""
    lines = bytes(data).split(b"\n")
    at = rng.randrange(len(lines))
    taken = lines.pop(at)
    kind = rng.randrange(4)
    if kind == 1:
        lines[at:at] = [taken] * rng.choice((2, 30))
    elif kind == 2:
        lines.insert(rng.randrange(len(lines) + 1), taken)
    elif kind == 3:
        lines.insert(at, b"  " * rng.randrange(1, 4) + taken)
    data[:] = b"\n".join(lines)


Mutator = Callable[[bytearray, random.Random], None]
OF_BYTES: tuple[Mutator, ...] = (flip, overwrite, count, cut, insert, repeat)
OF_TEXT: tuple[Mutator, ...] = (*OF_BYTES, number, number, number, word, word, word, line, line)


def mutated(data: bytes, rng: random.Random, mutators: tuple[Mutator, ...]) -> bytes:
    """Return bytes changed in one to four ways."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if found:
            rng.choice(mutators)(found, rng)
    return bytes(found)
