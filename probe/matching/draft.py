"""A mapping file, drafted from pairs that were found: as a person would write it, with why and how sure."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from probe.mapping import LayerMapping
from probe.mapping.parsing import parse_mapping
from probe.matching import Known, Matching, match
from probe.matching.automatic.outline import LISTS
from probe.matching.changes import changes_of
from probe.matching.loose import numbered
from probe.matching.result import Direction, Pair, WeightBundle
from probe.store.tree import storable_text
from probe.structure.tree import Tree

UNSURE = 0.8
"""below it a line is marked with ``# ?``"""
_TOP = "TopLayer"
_MOST_LEFT = 12
_WIDTH = 100
"""columns that comments are kept to"""
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER = re.compile(r"\d+")

_UNSEEN = "in which order and groups they lie was not seen: record with task='tensor'"

Value = tuple[tuple[str, ...], int, bool]
"""paths on the other side, in how many groups they lie, and whether that is known"""


@dataclass(slots=True)
class _Line:
    """What is said of one path below modules of one section."""

    values: dict[int, Value] = field(default_factory=dict)
    """by the module that the path begins at"""
    pairs: list[Pair] = field(default_factory=list)


def draft(
    matching: Matching,
    a: Known,
    b: Known,
    names: tuple[str, str] = ("A", "B"),
    lonely: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> str:
    """Return the text of a mapping that says what a matching found.

    A comment at the top calls the sides by ``names``; one at the end has the weights without a partner, ``lonely``.
    """
    drafting = _Draft(matching, a, b, lonely)
    text = drafting.text(names)
    if drafting.leave_out_lists(text):
        text = drafting.text(names)
    lost = drafting.lost(text)
    if lost:
        text = drafting.text(names, lost)
    return text


def is_written_from_a(matching: Matching) -> bool:
    """Return True if the keys of a draft are modules of A: several for one are said from the side that has the one."""
    several = (bundle for bundle in matching.weight_bundles if not bundle.is_one_for_one)
    sides = Counter(bundle.side for bundle in (*matching.bundles, *several))
    return sides["A"] <= sides["B"]


class _Draft:
    """The file under way; the source is the side that has what is several on the other."""

    def __init__(
        self, matching: Matching, a: Known, b: Known, lonely: tuple[Sequence[str], Sequence[str]] = ((), ())
    ) -> None:
        self.matching, self.lonely = matching, lonely
        self.forwards = is_written_from_a(matching)
        self.source, self.target = (a, b) if self.forwards else (b, a)
        self.trees = a.tree, b.tree
        self.here, self.there = self.source.tree, self.target.tree
        here, parts_side = ("A", "B") if self.forwards else ("B", "A")
        self.stepped, over = matching.stepped(here), matching.stepped(parts_side)
        self.views, self.views_there = matching.views(here), matching.views(parts_side)
        self.holders = {inner: outer for outer, inner in over.items() if outer != self.there.root}
        """modules of the target that are all that another one holds, and those that are stepped over"""
        self.bundles = {bundle.whole: bundle for bundle in matching.bundles if bundle.side == parts_side}
        self.weights = [
            each if each.side == parts_side else each.turned_round()
            for each in matching.weight_bundles
            if each.side == parts_side or each.is_one_for_one
        ]
        self.unsaid = len(matching.bundles) + len(matching.weight_bundles) - len(self.bundles) - len(self.weights)
        unsaid = {bundle.parts[0] for bundle in matching.bundles if bundle.side != parts_side}
        pairs = {pair.a if self.forwards else pair.b: pair for pair in matching.pairs}
        self.pairs = {i: pair for i, pair in pairs.items() if i not in unsaid}
        self.partner = {i: (pair.b if self.forwards else pair.a) for i, pair in self.pairs.items()}

    # What to say

    def text(self, names: tuple[str, str], spelled_out: Sequence[int] = ()) -> str:
        """Return the file; modules that are ``spelled_out`` by their whole paths."""
        sections: dict[str, list[str]] = {}
        for section, lines in self._sections(set(spelled_out)).items():
            written = [text for key, line in lines.items() for text in self._written(key, line)]
            if written:
                sections[section] = written
        for section, text in (*self._parameters(), *self._names()):
            found = sections.setdefault(section, [])
            if "  params:" not in found:
                found.append("  params:")
            found.append(text)
        parts = ["\n".join(map(_visible, self._header(names)))]
        parts += ["\n".join([f"{_quoted(section)}:", *lines]) for section, lines in sections.items()]
        parts += ["\n".join(map(_visible, [*self._left(), *self._lonely()]))]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _header(self, names: tuple[str, str]) -> Iterator[str]:
        source, target = names if self.forwards else names[::-1]
        yield f"# Drafted by probe map suggest. Keys are modules of {source}, values those of {target}."
        counts = Counter(pair.reason.value for pair in self.matching.pairs)
        yield f"# {len(self.matching.pairs)} pairs: {', '.join(f'{n} by {reason}' for reason, n in counts.most_common())}."
        unsure = sum(pair.confidence < UNSURE for pair in self.matching.pairs)
        if unsure:
            yield f"# {unsure} of them are not sure; their lines are marked with # ? and how sure they are: look at these."
        unseen = sum(not bundle.is_known for bundle in (*self.bundles.values(), *self.weights))
        if unseen:
            yield f"# Of {unseen} how several lie in one is not known; their lines are marked with # ? as well."
        for change in changes_of(self.matching, *self.trees):
            yield from textwrap.wrap(change.text, _WIDTH, initial_indent="# ", subsequent_indent="#   ",
                                     break_long_words=False, break_on_hyphens=False)  # fmt: skip
        if self.unsaid:
            yield (
                f"# {self.unsaid} modules or weights of {target} hold what is several in {source}: they are left out here. Say "
                "which with a line such as  whole: {from: [part, part]}; a comparison without a mapping finds them."
            )

    def _sections(self, spelled_out: set[int]) -> dict[str, dict[str, _Line]]:
        by_class: dict[tuple[str, str], _Line] = defaultdict(_Line)
        for i in sorted(self.partner):
            if i == self.here.root or self._is_held(i):
                continue
            start, value = self._value(i, i in spelled_out)
            line = by_class[self._class_of(start), _below(self.here, i, start)]
            line.values[start] = value
            line.pairs.append(self.pairs[i])
        found: dict[str, dict[str, _Line]] = {}
        for (name, key), line in by_class.items():
            for section, part in self._split(name, key, line):
                if any(value[:2] != ((key,), 1) for value in part.values.values()):
                    found.setdefault(section, {})[key] = part
        return found

    def _is_held(self, i: int) -> bool:
        """Return True if a module is what a wrapper, or another one that is stepped over, holds: nobody names it."""
        parent = self.here.modules[i].parent
        return self.here.wrapped(parent) == self.here.name(i) or self.stepped.get(parent) == i

    def _value(self, i: int, is_spelled_out: bool) -> tuple[int, Value]:
        """Return the nearest module around one whose partner is around its partner, and what to say from there."""
        bundle = self.bundles.get(i)
        parts = bundle.parts if bundle is not None else (self.partner[i],)
        around = () if is_spelled_out else self.here.ancestors(i)
        start = next((start for start in around if self._holds(start, parts)), self.here.root)
        top = self.there.unwrapped(self.partner.get(start, self.there.root))
        paths = tuple(_below(self.there, self.holders.get(part, part), top) for part in parts)
        return start, (paths, bundle.groups, bundle.is_known) if bundle is not None else (paths, 1, True)

    def _holds(self, start: int, parts: Sequence[int]) -> bool:
        top = self.partner.get(start)
        if top is None or self.here.wrapped(start) is not None:
            return False
        top = self.there.unwrapped(top)
        return all(top in self.there.ancestors(part) for part in parts)

    def _class_of(self, start: int) -> str:
        is_top = self.here.unwrapped(self.here.root) == self.here.unwrapped(start)
        return _TOP if is_top else self.here.class_name(start)

    def _split(self, name: str, key: str, line: _Line) -> Iterator[tuple[str, _Line]]:
        """Yield a class's line, or one for each place where the class stands when these say different things."""
        if name == _TOP or len(set(line.values.values())) == 1:
            yield name, line
            return
        for place in (_starred, str):
            groups: dict[str, dict[int, Value]] = defaultdict(dict)
            for start, value in line.values.items():
                groups[place(self.here.path(start))][start] = value
            if all(len(set(values.values())) == 1 for values in groups.values()):
                break
        for path, values in groups.items():
            yield f"/{path}", _Line(values, line.pairs)

    # How to write it

    def _written(self, key: str, line: _Line) -> Iterator[str]:
        paths, groups, is_known = next(iter(line.values.values()))
        least = min(line.pairs, key=lambda pair: pair.confidence)
        reasons = [] if least.confidence == 1 else [f"{least.reason.value}, {least.confidence:.2f}"]
        reasons += [] if is_known else [_UNSEEN]
        mark = "# " if is_known and least.confidence >= UNSURE else "# ? "
        why = f"  {mark}{'; '.join(reasons)}" if reasons else ""
        if len(paths) == 1:
            yield f"  {_quoted(key)}: {_quoted(paths[0])}{why}"
        elif groups == 1:
            yield f"  {_quoted(key)}: [{', '.join(map(_quoted, paths))}]{why}"
        else:
            yield f"  {_quoted(key)}:{why}"
            yield f"    to: [{', '.join(map(_quoted, paths))}]"
            yield f"    split: {{groups: {self._groups(groups)}}}"

    def _groups(self, number: int) -> str:
        """Return the key of a configuration that says a number of groups, or the number."""
        for known in (self.source, self.target):
            for key in ("num_query_groups", "num_key_value_heads", "multi_query_group_num", "num_attention_heads"):
                if (known.config or {}).get(key) == number:
                    return key
        return str(number)

    def _parameters(self) -> Iterator[tuple[str, str]]:
        """Yield section and line of what lies in one parameter."""
        said: set[tuple[str, str]] = set()
        for bundle in self.weights:
            whole, slot = bundle.whole
            start = self._start(*bundle.ends, bundle.is_one_for_one)
            if start is None:
                continue
            section, path = self._class_of(start), _below(self.here, whole, start)
            slot = f"{path}.{slot}" if path else slot
            top = self.there.unwrapped(self.partner[start])
            paths = ((_below(self.there, module, top), name) for module, name in bundle.parts[0])
            paths = ((_NUMBER.sub("{i}", path, count=1) if bundle.stacked else path, name) for path, name in paths)
            targets = [f"{path}.{name}" if path else name for path, name in paths]
            how = self._how(bundle)
            value = _quoted(targets[0]) if bundle.is_one_for_one else f"[{', '.join(map(_quoted, targets))}]"
            listed = f"{{to: {value}{how}}}"
            is_name = len(targets) == 1 and not bundle.stacked and not how
            why = "" if bundle.is_known or bundle.stacked else f"  # ? {_UNSEEN}"
            text = f"    {_quoted(slot)}: {_quoted(targets[0]) if is_name else listed}{why}"
            if (section, text) not in said:
                said.add((section, text))
                yield section, text

    def _start(self, whole: int, parts: Sequence[int], is_one_for_one: bool) -> int | None:
        """Return the module at which to say in which weight others lie: that one's, for one for one also one around it."""
        around = (whole, *self.here.ancestors(whole)) if is_one_for_one else (whole,)
        holders = set.intersection(*({part, *self.there.ancestors(part)} for part in parts))
        return next((start for start in around if self.partner.get(start) in holders), None)

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield section and line of parameters that a guess names, or turns; those of parts can only be told at the whole."""
        parts = {part for bundle in self.bundles.values() for part in bundle.parts}
        back = {j: i for i, j in self.partner.items()}
        said = [(module, slot, view.name, view) for (module, slot), view in self.views.items()]
        said += [(back.get(j), view.name, slot, view) for (j, slot), view in self.views_there.items() if j not in parts]
        lines: dict[tuple[str, str], tuple[str, float]] = {}
        for module, key, name, view in said:
            if module is not None and view.confidence < 1:
                value = f"{{to: {_quoted(name)}, transpose: true}}" if view.axes else _quoted(name)
                place = self._class_of(module), key
                if view.axes or key != name:
                    lines[place] = value, min(view.confidence, lines.get(place, (value, 1.0))[1])
        for (section, key), (value, sure) in lines.items():
            yield section, f"    {_quoted(key)}: {value}  # {'? ' if sure < UNSURE else ''}a guess, {sure:.2f}"

    def _how(self, bundle: WeightBundle) -> str:
        there = [self.views_there.get(bundle.parts[0][0])] if bundle.is_one_for_one else []
        ends = [self.views.get(bundle.whole), *there]
        turned = ", transpose: true" if any(view is not None and view.axes for view in ends) else ""
        turned += ", reshape: true" if bundle.shape else ""
        split = f", split: {{groups: {self._groups(bundle.groups)}}}" if bundle.groups > 1 else ""
        return f"{turned}{split}"

    def _left(self) -> Iterator[str]:
        for name, tree in zip("AB", self.trees, strict=True):
            left = set(self.matching.only(name))
            outermost: dict[str, list[int]] = defaultdict(list)
            for index in self.matching.only(name):
                if tree.modules[index].parent not in left:
                    outermost[_starred(tree.path(index))].append(index)
            shown = []
            for starred, alike in outermost.items():
                more = sum(each in left for index in alike for each in tree.subtree(index)) - len(alike)
                what = f"{starred} ×{len(alike)}" if len(alike) > 1 else tree.path(alike[0]) or "the whole model"
                modules = "1 module" if more == 1 else f"{more} modules"
                shown.append(f"{what} and {modules} inside" if more else what)
            yield from _listed(f"# Without a counterpart in {name}:", shown)

    def _lonely(self) -> Iterator[str]:
        """Yield the weights without a partner, but for those of modules that are left with all that is in them."""
        for name, weights, tree in zip("AB", self.lonely, self.trees, strict=True):
            left = set(self.matching.only(name))
            shown = numbered(each for each in weights if not _is_left_whole(tree, left, each.rpartition(".")[0]))
            title = f"# Weights of {name} that are not compared; a line of params would say with which:"
            yield from _listed(title, shown)

    # Whether it says what it should

    def lost(self, text: str) -> list[int]:
        """Return modules of the source whose pairs a text does not give."""
        again = self._again(parse_mapping(text, "the draft"))
        found = {(pair.a, pair.b) for pair in again.pairs}
        return [i for i, pair in self.pairs.items() if (pair.a, pair.b) not in found and not self._is_held(i)]

    def leave_out_lists(self, text: str) -> bool:
        """Leave out lists of which a text would pair members that are none, by their numbers; return True if there are any.

        Where one side's list has attentions and MLPs in turns, and the other's whole layers, ``1`` is not ``1``.
        """
        held = set()
        for pair in self._again(parse_mapping(text, "the draft")).pairs:
            i = pair.a if self.forwards else pair.b
            around = self.here.modules[i].parent
            is_list = around in self.pairs and self.here.class_name(around) in LISTS
            if is_list and i not in self.partner:
                held.add(around)
        for around in held:
            del self.pairs[around], self.partner[around]
        return bool(held)

    def _again(self, mapping: LayerMapping) -> Matching:
        sides = (self.source, self.target) if self.forwards else (self.target, self.source)
        direction = Direction.A_TO_B if self.forwards else Direction.B_TO_A
        return match(*sides, mapping, _nothing, _nothing, direction)


def _below(tree: Tree, index: int, top: int) -> str:
    """Return the path of a module from one around it, without what wrappers call what they hold."""
    names = []
    while index not in (top, -1):
        if tree.wrapped(tree.modules[index].parent) != tree.name(index):
            names.append(tree.name(index))
        index = tree.modules[index].parent
    return ".".join(reversed(names))


def _listed(title: str, shown: Sequence[str]) -> Iterator[str]:
    """Yield a title and what stands below it, if anything does."""
    if shown:
        yield title
    yield from (f"#   {each}" for each in shown[:_MOST_LEFT])
    if len(shown) > _MOST_LEFT:
        yield f"#   and {len(shown) - _MOST_LEFT} more"


def _nothing(_: int) -> frozenset[object]:
    return frozenset()


def _is_left_whole(tree: Tree, left: Set[int], path: str) -> bool:
    """Return True if the outermost module that is left around a path has nothing in it that is not left."""
    index = tree.by_path[storable_text(path)]  # names of weights are stored as they are, paths as HDF5 can hold them
    if index not in left:
        return False
    while tree.modules[index].parent in left:
        index = tree.modules[index].parent
    return left.issuperset(tree.subtree(index))


def _starred(path: str) -> str:
    return ".".join("*" if name.isdigit() else name for name in path.split("."))


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else '"{}"'.format(_visible(text.replace("\\", "\\\\").replace('"', '\\"')))


def _visible(text: str) -> str:
    """Return a text on one line, with what is not shown written as YAML writes it between quotes."""
    return "".join(
        each if each.isprintable() else f"\\u{ord(each):04x}" if ord(each) < 1 << 16 else f"\\U{ord(each):08x}"
        for each in text
    )
