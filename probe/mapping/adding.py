"""Lines put into the text of a mapping, which otherwise stays as it was: comments, order, line ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from probe.mapping.parsing import parse_mapping
from probe.mapping.reading import Source

_PLAIN = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)
_WORDS = re.compile(r"y|yes|n|no|true|false|on|off|null|inf|nan", re.IGNORECASE)
_UNSEEN = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a mapping: in a section, a path of this side and what takes its place; on one of the two several, as the parts of one."""

    section: str
    key: str | Sequence[str]
    target: str | Sequence[str]

    def __str__(self) -> str:
        """Return it as it is written: of several on this side the key is the other side's. How they lie in the one is read from the weights."""
        if isinstance(self.key, str) and isinstance(self.target, str):
            return f"{_quoted(self.key)}: {_quoted(self.target)}"
        way, key, several = (
            ("to", self.key, self.target) if isinstance(self.key, str) else ("from", self.target, self.key)
        )
        return f"{_quoted(str(key))}: {{{way}: [{', '.join(map(_quoted, several))}], split: {{groups: as_recorded}}}}"


def with_lines(text: str, name: str, added: Iterable[Line]) -> str:
    """Return a mapping's text with further lines, each at the end of its section; new sections stand at the end.

    The text may be empty. Raises MappingError, which calls it by ``name``, where it is no mapping, or would be none
    with these lines.
    """
    for line in added:
        text = _with_line(text, name, line)
        parse_mapping(text, name)
    return text


def _with_line(text: str, name: str, line: Line) -> str:
    source = Source(text, name)
    root = source.root()
    if root is not None and not isinstance(root, yaml.MappingNode):
        source.fail(root, "expected sections named by a module class")
    wanted = str(line)
    sections = [] if root is None else root.value
    if root is not None and root.flow_style:
        source.fail(root, f"is written in braces, into which nothing can be put; write it as lines, as in {wanted}")
    node = next((value for key, value in sections if key.value in (line.section, f"{line.section}?")), None)
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    if node is None:
        lines += [*([end] if lines else []), f"{_quoted(line.section)}:{end}", f"  {wanted}{end}"]
    elif isinstance(node, yaml.MappingNode) and not node.flow_style:
        # pyyaml's lines are those of splitlines but for \x0b, \x0c and \x1c-\x1e, which no mapping may have
        lines.insert(_last(node).end_mark.line + 1, f"{' ' * node.start_mark.column}{wanted}{end}")
    else:
        source.fail(node, f"{line.section}: is written in one line; write it as lines, as in {wanted}")
    return "".join(lines)


def _last(node: yaml.Node) -> yaml.Node:
    """Return what stands last in a node that is written as lines: its end, and not that of the comments behind it."""
    while isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and not node.flow_style and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return node


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _WORDS.fullmatch(text):
        return text
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
