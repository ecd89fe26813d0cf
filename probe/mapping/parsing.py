"""The text of a mapping becomes its rules; every error has its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import yaml

from probe.errors import MappingError
from probe.mapping.judging import JudgingRule
from probe.mapping.judging_files import RULES, parse_rules
from probe.mapping.nearest import did_you_mean
from probe.mapping.patterns import (
    ANY,
    Names,
    PathPattern,
    PatternError,
    parsed_key,
    parsed_path,
    parsed_section,
    placeholders,
)
from probe.mapping.reading import Source, is_placeholder, kind
from probe.mapping.rules import TOP, Ignored, LayerMapping, ParameterRule, Rotary, Rule, Section, Split

PARAMS, IGNORE = "params", "ignore"
"""reserved: the key for parameters, the section of what is left out"""
DIMS = "dims"
"""reserved: the section that says how tensors are divided over ranks"""
_RULE_LIMIT = 20_000
FROM = "from"
"""in place of ``to``: a module, or a parameter, of the other side that several of this side are"""
_LONG = ("to", FROM, "split", "transpose", "permute")
_AXES = {"out": 0, "in": 1}
ROTARY = "rotary"
RESHAPE = "reshape"
_SIDES = ("here", "there")
_MOST_SHARES = 64
_TURNED = {"interleaved": True, "halves": False}

T = TypeVar("T")


def as_yaml(sections: Mapping[str, Any]) -> str:
    """Return the text of a mapping that was given as a dict; MappingError where it holds more than names and paths."""
    try:
        return yaml.safe_dump(dict(sections), sort_keys=False)
    except yaml.YAMLError as error:
        raise MappingError(f"the mapping: not names and paths ({error.args[0]}: {error.args[-1]!r})") from None
    except RecursionError:
        raise MappingError("the mapping: nested too deeply for a layer mapping") from None


def parse_mapping(text: str, name: str) -> LayerMapping:
    """Parse the YAML text of a layer mapping; ``name`` is what errors call it."""
    source = Source(text, name)
    root = source.root()
    if root is None:
        return LayerMapping(name=name)
    return _Parser(source).mapping(root)


class _Parser:
    """The nodes of one file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.count = 0

    def mapping(self, root: yaml.Node) -> LayerMapping:
        sections: list[Section] = []
        ignored: list[Ignored] = []
        judging: tuple[JudgingRule, ...] = ()
        dims: tuple[tuple[str, str], ...] = ()
        for written, node in self.source.entries(root, "sections named by a module class"):
            key, is_optional = _optional(written)
            if key.value == IGNORE and isinstance(node, yaml.SequenceNode):
                ignored += map(self._ignored, node.value)
            elif key.value == RULES and isinstance(node, yaml.SequenceNode):
                judging = parse_rules(self.source, node)
            elif key.value == DIMS and isinstance(node, yaml.MappingNode):
                dims = self._dims(node)
            elif isinstance(node, yaml.SequenceNode):
                near = did_you_mean(key.value, (IGNORE, RULES))
                self.source.fail(
                    key, f"expected paths below {key.value}, got a list; {IGNORE} and {RULES} have one{near}"
                )
            else:
                sections.append(self._section(key, node, is_optional))
        return LayerMapping(tuple(sections), tuple(ignored), self.source.name, judging, dims)

    def _dims(self, node: yaml.Node) -> tuple[tuple[str, str], ...]:
        """Return how tensors are divided over ranks; the texts are read where the ranks are known."""
        found = []
        for key, value in self.source.entries(node, "dims by globs of module paths"):
            if not isinstance(value, yaml.ScalarNode):
                self.source.fail(value, f"{DIMS}: {key.value}: expected a text such as 'b s h[tp]'")
            found.append((key.value, value.value))
        return tuple(found)

    def _section(self, key: yaml.Node, node: yaml.Node, is_optional: bool) -> Section:
        name = key.value
        path, class_name = self._read(parsed_section, key)
        if name == TOP:
            path, class_name = PathPattern(()), ""
        rules: list[Rule] = []
        params: list[ParameterRule] = []
        named: dict[Names, int] = {}
        for written, value in self.source.entries(node, f"paths below {name}", key):
            child, may_lack = _optional(written)
            self._count(child)
            if child.value == PARAMS and isinstance(value, yaml.MappingNode):
                params += self._params(name, value)
            else:
                rules.append(replace(self._rule(name, child, value), is_optional=may_lack))
                self._check_named_once(name, rules[-1], named, child)
        return Section(name, self.source.line(key), tuple(rules), tuple(params), class_name, path, is_optional)

    def _rule(self, section: str, key: yaml.Node, value: yaml.Node) -> Rule:
        where = f"{section}: {key.value}"
        names = self._read(parsed_key, key)
        long = self._long(key, value, where, (*_LONG, ROTARY, PARAMS), "the path on the other side")
        is_reversed = FROM in long
        targets = self._targets(
            key, long, where, "several paths of this side" if is_reversed else "the path on the other side"
        )
        self._check_bound(key, where, names, targets, is_reversed)
        if len(targets) == 1 and isinstance(long["to"], yaml.SequenceNode):
            self.source.fail(key, f"{where}: a list with one entry; expected several, or the path without a list")
        split = self._split(long.get("split"), where, targets, has_axis=False)
        params = self._params(where, long[PARAMS]) if PARAMS in long else []
        turned = self._turned(key, long, where)
        rotary = self._rotary(long[ROTARY], where, targets) if ROTARY in long else None
        said = section, names, targets, self.source.line(key), split, *turned, is_reversed
        return Rule(*said, params=tuple(params), rotary=rotary)

    def _rotary(self, node: yaml.Node, where: str, targets: tuple[Names, ...]) -> Rotary:
        if len(targets) > 1:
            self.source.fail(node, f"{where}: rotary is for one module on either side; here are {len(targets)}")
        known = ("heads", "here")
        said = {name.value: value for name, value in self.source.entries(node, f"{ROTARY}: heads and here")}
        wrong = next((name for name in said if name not in known), None)
        if wrong is not None:
            self.source.fail(
                node, f"{where}: {wrong} is not known; expected heads and here{did_you_mean(wrong, known)}"
            )
        lacking = next((name for name in known if name not in said), None)
        if lacking is not None:
            self.source.fail(
                node,
                f"{where}: rotary: expected heads, how many, and here: interleaved or halves; {lacking} is missing",
            )
        here = said["here"].value if isinstance(said["here"], yaml.ScalarNode) else None
        if here not in _TURNED:
            self.source.fail(said["here"], f"{where}: here: expected interleaved or halves, got {kind(said['here'])}")
        return Rotary(self._count_of("heads", said["heads"], where), _TURNED[here])

    def _check_bound(
        self, key: yaml.Node, where: str, names: Names, targets: tuple[Names, ...], is_reversed: bool
    ) -> None:
        """Refuse numbers that nothing tells."""
        if is_reversed and len(targets) == 1:
            self.source.fail(
                key,
                f"{where}: from is for several of this side; for one, write {'.'.join(targets[0])}: {'.'.join(names)}",
            )
        for target in targets:
            unbound = sorted(placeholders(target) - placeholders(names))
            if unbound:
                self.source.fail(key, f"{where}: {{{unbound[0]}}} in {'.'.join(target)} does not stand in the key")
            unbound = sorted(placeholders(names) - placeholders(target)) if is_reversed else []
            if unbound:
                self.source.fail(key, f"{where}: {{{unbound[0]}}} of the key does not stand in {'.'.join(target)}")

    def _check_named_once(self, section: str, rule: Rule, named: dict[Names, int], key: yaml.Node) -> None:
        """Refuse a path of this side that several lines say something of: one of them lists it with from."""
        for path in rule.keys:
            if named.setdefault(path, rule.line) != rule.line:
                self.source.fail(
                    key, f"{section}: {'.'.join(path)} is named a second time; the first is on line {named[path]}"
                )

    def _params(self, section: str, node: yaml.Node) -> list[ParameterRule]:
        rules = []
        for written, value in self.source.entries(node, f"parameters of {section}"):
            key, is_optional = _optional(written)
            rules.append(replace(self._parameter(section, key, value), is_optional=is_optional))
        return rules

    def _parameter(self, section: str, key: yaml.Node, value: yaml.Node) -> ParameterRule:
        self._count(key)
        where = f"{section}: {PARAMS}: {key.value}"
        expected = "the parameter's name on the other side"
        names = self._read(parsed_key, key)
        if placeholders(names):
            self.source.fail(key, f"{where}: {{i}} is for the parameters that it stacks")
        long = self._long(key, value, where, (*_LONG, RESHAPE), expected)
        is_reversed = FROM in long
        targets = self._targets(key, long, where, expected)
        variables = {frozenset(placeholders(target)) for target in targets}
        if len(variables) > 1 or len(next(iter(variables))) > 1:
            self.source.fail(key, f"{where}: expected one placeholder, the same in every path, or none")
        is_stacked = bool(next(iter(variables)))
        if len(targets) == 1 and not is_stacked and isinstance(long["to"], yaml.SequenceNode):
            self.source.fail(key, f"{where}: a list with one entry; expected several, or the name without a list")
        split = self._split(long.get("split"), where, targets, has_axis=True)
        turned = self._turned(key, long, where)
        reshape = self._flag(long.get(RESHAPE), where, RESHAPE)
        if reshape and (is_stacked or is_reversed or len(targets) > 1):
            self.source.fail(key, f"{where}: reshape is for one parameter on either side, the key this side's")
        said = section, names, targets, self.source.line(key), split, *turned, is_reversed
        return ParameterRule(*said, reshape=reshape)

    # The parts of the long form

    def _long(
        self, key: yaml.Node, value: yaml.Node, where: str, known: tuple[str, ...], expected: str
    ) -> dict[str, yaml.Node]:
        """Return the long form of a value, whichever it has."""
        if not isinstance(value, yaml.MappingNode) or is_placeholder(value):
            return {"to": value}
        long: dict[str, yaml.Node] = {}
        for name, node in self.source.entries(value, f"{', '.join(known)}"):
            if name.value == RESHAPE and RESHAPE not in known:
                self.source.fail(name, f"{where}: {_reshaped(key, value)}")
            if name.value not in known:
                hint = did_you_mean(name.value, known)
                self.source.fail(
                    name, f"{where}: {name.value} is not known; expected {', '.join(known[:-1])} or {known[-1]}{hint}"
                )
            long[name.value] = node
        if ("to" in long) == (FROM in long):
            both = "to or from, got both" if "to" in long else f"to: with {expected}"
            self.source.fail(key, f"{where}: expected {both}")
        if FROM in long:
            long["to"] = long[FROM]
            if PARAMS in long:
                self.source.fail(
                    key, f"{where}: params says what a module of this side calls its own; from names several"
                )
        return long

    def _targets(self, key: yaml.Node, long: dict[str, yaml.Node], where: str, expected: str) -> tuple[Names, ...]:
        node = long["to"]
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not items:
            self.source.fail(key, f"{where}: expected {expected}, got an empty list")
        found: list[Names] = []
        for item in items:
            self._count(item)
            if not isinstance(item, yaml.ScalarNode) or kind(item) == "nothing":
                self.source.fail(key if item is node else item, f"{where}: expected {expected}, got {kind(item)}")
            found.append(self._read(parsed_key, item))
            if found[-1] in found[:-1]:
                self.source.fail(item, f"{where}: {item.value} stands in the list twice")
        return tuple(found)

    def _split(self, node: yaml.Node | None, where: str, targets: tuple[Names, ...], has_axis: bool) -> Split:
        if node is None:
            return Split()
        if len(targets) == 1:
            return self._split_of_one(node, where, targets[0], has_axis)
        known = ("groups", "axis", "order") if has_axis else ("groups", "order")
        said: dict[str, yaml.Node] = {}
        for name, value in self.source.entries(node, "groups, axis or order"):
            if name.value == "axis" and not has_axis:
                self.source.fail(name, f"{where}: axis is for parameters: say it below params")
            if name.value not in known:
                hint = did_you_mean(name.value, known)
                self.source.fail(name, f"{where}: {name.value} is not known; expected {' or '.join(known)}{hint}")
            said[name.value] = value
        axis = self._axis(said["axis"], where) if "axis" in said else 0
        groups = self._count_of("groups", said["groups"], where) if "groups" in said else 1
        last = [target[-1] for target in targets]
        order = self._order(said["order"], where, "entry of the list", last) if "order" in said else ()
        return Split(groups, axis, order)

    def _split_of_one(self, node: yaml.Node, where: str, target: Names, has_axis: bool) -> Split:
        """Return how several parts lie in one on both sides: in other groups, or in another order."""
        known = ("parts", "groups", "order", "axis")[: 3 + has_axis]
        said = {name.value: value for name, value in self.source.entries(node, "parts, groups and order")}
        if not {"parts", "order"} & said.keys():
            self.source.fail(node, f"{where}: split says how several lie in one; here is only {'.'.join(target)}")
        wrong = next((name for name in said if name not in known), None)
        if wrong is not None or not {"groups", "order"} & said.keys():
            what = "groups is missing" if wrong is None else f"{wrong} is not known{did_you_mean(wrong, known)}"
            self.source.fail(
                node, f"{where}: split: {what}; expected parts, how many lie in it, and groups, in how many groups here, "
                "or order, in which they lie there"
            )  # fmt: skip
        groups: dict[str, int | str] = {}
        if isinstance(said.get("groups"), yaml.MappingNode):
            for name, value in self.source.entries(said["groups"], "here and there"):
                if name.value not in _SIDES:
                    self.source.fail(name, f"{where}: groups: {name.value} is not known; expected here or there")
                groups[name.value] = self._count_of("groups", value, where)
        elif "groups" in said:
            groups["here"] = self._count_of("groups", said["groups"], where)
        shares = self._shares(said["parts"], where) if "parts" in said else (1,) * len(_items(said["order"]))
        order = self._order(said["order"], where, "part", [""] * len(shares)) if "order" in said else ()
        axis = self._axis(said["axis"], where) if "axis" in said else 0
        return Split(groups.get("here", 1), axis, shares=shares, groups_there=groups.get("there", 1), order_there=order)

    def _shares(self, node: yaml.Node, where: str) -> tuple[int, ...]:
        """Return how large the parts are beside each other."""
        found = [_number(item.value) if isinstance(item, yaml.ScalarNode) else None for item in _items(node)]
        count = _number(node.value) if isinstance(node, yaml.ScalarNode) else None
        shares = [1] * min(count, _MOST_SHARES + 1) if count else [each or 0 for each in found]
        if not 1 < len(shares) <= _MOST_SHARES or min(shares) < 1 or sum(shares) > _RULE_LIMIT:
            self.source.fail(
                node,
                f"{where}: parts: expected how many equal parts there are, or their sizes beside each other, such as [4, 1, 1]",
            )
        return tuple(shares)

    def _axis(self, node: yaml.Node, where: str) -> int:
        number = _number(node.value) if isinstance(node, yaml.ScalarNode) else None
        if number is None and not (isinstance(node, yaml.ScalarNode) and node.value in _AXES):
            self.source.fail(node, f"{where}: axis: expected out, in or a number (the first is 0), got {kind(node)}")
        return _AXES[node.value] if number is None else number

    def _count_of(self, what: str, node: yaml.Node, where: str) -> int | str:
        expected = f"{where}: {what}: expected a number, or a key of the recorded model_config"
        text = self.source.text_of(node, "a number") if isinstance(node, yaml.ScalarNode) else ""
        if not text:
            self.source.fail(node, f"{expected}, got {kind(node)}")
        number = _number(text)
        if number is None and not text.replace(".", "_").isidentifier() or number == 0:
            self.source.fail(node, f"{expected}, got {kind(node)}")
        return text if number is None else number

    def _order(self, node: yaml.Node, where: str, what: str, last: list[str]) -> tuple[int, ...]:
        """Return positions in the order that is written; ``last`` has the last names that may stand for them."""
        expected = (
            f"{where}: order: expected each {what} once, by position (the first is 0){' or last name' * any(last)}"
        )
        if not isinstance(node, yaml.SequenceNode):
            self.source.fail(node, f"{expected}, got {kind(node)}")
        order = []
        for item in node.value:
            text = item.value if isinstance(item, yaml.ScalarNode) else ""
            position = last.index(text) if last.count(text) == 1 else _number(text)
            if position is None or position >= len(last):
                self.source.fail(item, f"{expected}, got {kind(item)}")
            order.append(position)
        if sorted(order) != list(range(len(last))):
            self.source.fail(node, expected)
        return tuple(order)

    def _flag(self, node: yaml.Node | None, where: str, what: str) -> bool:
        if node is not None and (not node.tag.endswith(":bool") or node.value.lower() not in ("true", "false")):
            self.source.fail(node, f"{where}: {what}: expected true or false, got {kind(node)}")
        return node is not None and node.value.lower() == "true"

    def _permute(self, node: yaml.Node | None, where: str) -> tuple[int, ...]:
        if node is None:
            return ()
        axes = [_number(item.value) if isinstance(item, yaml.ScalarNode) else None for item in _items(node)]
        if not axes or None in axes or sorted(filter(lambda axis: axis is not None, axes)) != list(range(len(axes))):
            self.source.fail(node, f"{where}: permute: expected every axis once, such as [1, 0]")
        return tuple(axis for axis in axes if axis is not None)

    def _turned(self, key: yaml.Node, long: dict[str, yaml.Node], where: str) -> tuple[bool, tuple[int, ...]]:
        """Return whether a matrix is transposed, and the order of other axes."""
        transpose = self._flag(long.get("transpose"), where, "transpose")
        permute = self._permute(long.get("permute"), where)
        if transpose and permute:
            self.source.fail(key, f"{where}: expected transpose or permute, got both")
        return transpose, permute

    def _ignored(self, written: yaml.Node) -> Ignored:
        self._count(written)
        node, is_optional = _optional(written)
        text = self.source.text_of(node, "a path of what is to be ignored")
        path, class_name = self._read(parsed_path, node)
        if not class_name and all(name == ANY for name in path.names):
            self.source.fail(node, f"{IGNORE}: {text} leaves out the whole model")
        return Ignored(text, path, class_name, self.source.line(node), is_optional)

    def _read(self, read: Callable[[str], T], node: yaml.Node) -> T:
        try:
            return read(node.value)
        except PatternError as error:
            self.source.fail(node, str(error), error.column)

    def _count(self, node: yaml.Node) -> None:
        """Refuse a small file that stands for a large one: sections that are each other's."""
        self.count += 1
        if self.count > _RULE_LIMIT:
            raise MappingError(f"{self.source.name}: more than {_RULE_LIMIT} keys; a layer mapping has fewer")


def _optional(node: yaml.Node) -> tuple[yaml.Node, bool]:
    """Return a name without the question mark behind it, and whether there is one."""
    if not isinstance(node, yaml.ScalarNode) or len(node.value) < 2 or not node.value.endswith("?"):
        return node, False
    return yaml.ScalarNode(node.tag, node.value[:-1], node.start_mark, node.end_mark, node.style), True


def _reshaped(key: yaml.Node, value: yaml.MappingNode) -> str:
    """Return how a line of a module would say that its weight has another shape."""
    said = {name.value: node for name, node in value.value}
    to = said["to"].value if isinstance(said.get("to"), yaml.ScalarNode) else "…"
    axes = [item.value for item in _items(said["permute"])] if "permute" in said else []
    turned = f", permute: [{', '.join(map(str, axes))}]" if axes else ", transpose: true" if "transpose" in said else ""
    return f"reshape is said of a parameter; expected {key.value}: {{to: {to}, params: {{weight: {{to: weight, reshape: true{turned}}}}}}}"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _items(node: yaml.Node) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []
