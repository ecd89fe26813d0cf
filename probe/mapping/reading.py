"""YAML with the lines that an editor shows, and nothing that grows or runs while it is read."""

from __future__ import annotations

import bisect
import re
from typing import NoReturn

import yaml

from probe.errors import MappingError

SIZE_LIMIT = 256 << 10
"""bytes; it takes a second to parse so many"""
_UNQUOTED = re.compile(r"(^|[:\[,-])\s*\{\w+\}[^\s,:\]]")
_QUOTES = {
    _UNQUOTED: "a path that begins with { needs quotes",
    re.compile(r"\{.*[^\s\"']\?\s*:"): "in braces a name with ? needs quotes",
}
_UNCLOSED = "could not find expected ':'"


class Source:
    """The text of a mapping, and what errors call it: its nodes, their lines, and errors that name both."""

    def __init__(self, text: str, name: str) -> None:
        if len(text) > SIZE_LIMIT:
            raise MappingError(f"{name} has {len(text)} characters; a layer mapping has at most {SIZE_LIMIT}")
        self.text, self.name = text, name
        self._starts = [found.end() for found in re.finditer(r"\r\n|\r|\n", text)]

    def root(self) -> yaml.Node | None:
        """Return the document's node; None for an empty text."""
        try:
            return yaml.compose(self.text, Loader=yaml.SafeLoader)
        except RecursionError:
            raise MappingError(f"{self.name}: nested too deeply for a layer mapping") from None
        except yaml.MarkedYAMLError as error:
            line = self._line_of(error)
            quotes = next((f": {hint}" for found, hint in _QUOTES.items() if found.search(self._text(line))), "")
            where = f", line {line}" if line else ""
            what = error.problem or error.context
            raise MappingError(f"{self.name}{where}: not valid YAML ({what}){quotes}") from None
        except (yaml.YAMLError, ValueError) as error:
            position = getattr(error, "position", None)
            place = "" if position is None else f", line {self._line(position)}"
            what = str(error).partition("\n")[0]
            raise MappingError(f"{self.name}{place}: not valid YAML ({what})") from None

    def line(self, node: yaml.Node) -> int:
        """Return the line on which a node begins; the first is 1."""
        return self._line(node.start_mark.index)

    def fail(self, node: yaml.Node, message: str, column: int | None = None) -> NoReturn:
        """Raise an error about a node, or about what stands at a column of its text."""
        place = f"line {self.line(node)}"
        if column is not None and isinstance(node, yaml.ScalarNode):
            place += f", column {node.start_mark.column + bool(node.style) + column + 1}"
        raise MappingError(f"{self.name}, {place}: {message}")

    def entries(self, node: yaml.Node, expected: str, at: yaml.Node | None = None) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return keys and values of a mapping, whose keys are names that differ; errors name the line of ``at``."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(at or node, f"expected {expected}, got {kind(node)}")
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name = self.text_of(key, "a name")
            if name in seen:
                self.fail(key, f"{name} stands here a second time; the first is on line {seen[name]}")
            seen[name] = self.line(key)
        return list(node.value)

    def text_of(self, node: yaml.Node, expected: str) -> str:
        """Return the text of a scalar as it is written, a number's too."""
        if isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null"):
            return node.value
        self.fail(node, f"expected {expected}, got {kind(node)}")

    def _line_of(self, error: yaml.MarkedYAMLError) -> int:
        """Return the line of an error, 0 where there is none: that of what is not closed, not the end of the file."""
        mark = error.problem_mark
        is_behind = mark is not None and mark.index >= len(self.text.rstrip())
        if error.context_mark is not None and (is_behind or error.problem == _UNCLOSED):
            mark = error.context_mark
        return 0 if mark is None else self._line(mark.index)

    def _text(self, line: int) -> str:
        ends = [0, *self._starts, len(self.text)]
        return self.text[ends[line - 1] : ends[line]] if line else ""

    def _line(self, index: int) -> int:
        """Return the line of a character, as editors count: YAML breaks lines at further characters."""
        return bisect.bisect_right(self._starts, min(index, len(self.text.rstrip()))) + 1


def kind(node: yaml.Node) -> str:
    """Return what a node is, for errors."""
    if is_placeholder(node):
        return "a mapping: a path that begins with { needs quotes"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if node.tag.endswith(":null") else repr(node.value)


def is_placeholder(node: yaml.Node) -> bool:
    """Return True if a node is ``{i}`` without quotes, which YAML takes for a mapping."""
    if not isinstance(node, yaml.MappingNode) or not node.flow_style or len(node.value) != 1:
        return False
    value = node.value[0][1]
    return isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null") and not value.value
