"""The code of a function with calls put behind some of its lines, compiled from its file, which stays as it is.

    def forward(self, x):            def forward(self, x):
        q = rotated(self.q(x))           q = rotated(self.q(x))
        return q @ x                     try:
                                             __probe_point__(0, lambda: q)
                                         except NameError:
                                             pass
                                         return q @ x

The whole file is compiled, as Python did, so that names, cells and columns are those of the code that runs. The lambda
lets `__probe_point__` evaluate the expression where no error of it reaches the program. The name is a global while a
recording runs; a call that is under way when the recording ends does not find it, hence NameError.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import inspect
import io
import tokenize
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from probe.config import Point
from probe.errors import ConfigError

CALLED = "__probe_point__"
"""what the code calls with the number of a point and a function that returns its value"""
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
"""what has code of its own"""
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
"""statements behind which nothing runs"""
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
"""tokens by which two lines that read the same may differ"""


def function_of(method: Any) -> FunctionType | None:
    """Return the function of Python that a method calls in the end, behind wrappers that say what they wrap."""
    seen: set[int] = set()
    while id(method) not in seen:
        seen.add(id(method))
        if "__wrapped__" in getattr(method, "__dict__", {}):
            method = method.__wrapped__
        elif isinstance(method, functools.partial):
            method = method.func
        elif isinstance(method, MethodType):
            method = method.__func__
    return method if isinstance(method, FunctionType) and method.__name__ != "<lambda>" else None


def code_with(code: CodeType, points: Mapping[int, Point]) -> CodeType:
    """Return a function's code that calls `CALLED` with the number of each point right behind its line.

    Raises ConfigError where the source is not to be had, or a line is not there.
    """
    name = code.co_qualname
    where = f"points: {name} of {code.co_filename}"
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
        is_source = _code_in(_compiled(tree, code), code) == code
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} has no source that can be read ({error}): points need it") from None
    function = next((node for node in ast.walk(tree) if _is_of(node, code)), None)
    if not is_source or function is None:
        raise ConfigError(
            f"{where} is not what runs: was the file changed since it was imported? Start the program again"
        )
    behind: dict[ast.stmt, list[ast.stmt]] = {}
    for number, point in points.items():
        line = _statement(function, lines, point, code)
        behind.setdefault(line, []).append(_call(number, point, line))
    for node in [*ast.walk(function)]:
        _insert(node, behind)
    try:
        made = _code_in(_compiled(tree, code), code)
    except SyntaxError as error:
        raise ConfigError(f"{where}: a value cannot be evaluated there ({error})") from None
    assert made is not None
    if unseen := set(made.co_freevars) - set(code.co_freevars):
        raise ConfigError(
            f"{where} does not use {', '.join(sorted(unseen))} of the function around it: a value cannot either"
        )
    return made


def _compiled(tree: ast.Module, like: CodeType) -> CodeType:
    return compile(tree, like.co_filename, "exec", dont_inherit=True)


def _code_in(outer: CodeType, like: CodeType) -> CodeType | None:
    """Return the code inside another that stands where one stood in its file."""
    for inner in outer.co_consts:
        if isinstance(inner, CodeType):
            is_it = (inner.co_qualname, inner.co_firstlineno) == (like.co_qualname, like.co_firstlineno)
            found = inner if is_it else _code_in(inner, like)
            if found is not None:
                return found
    return None


def _is_of(node: ast.AST, code: CodeType) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    first = min(each.lineno for each in (node, *node.decorator_list))
    return (node.name, first) == (code.co_name, code.co_firstlineno)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a function, in their order, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, _APART):
            yield from _statements(child)


def _statement(function: ast.AST, lines: list[str], point: Point, code: CodeType) -> ast.stmt:
    """Return the one statement behind which a point stands."""
    wanted, statements = _tokens(point.after), list(_statements(function))
    found = [each for each in statements if wanted in _texts(each, lines)]
    said = f"points: {point.name!r}: {point.after!r}"
    of = f"{code.co_qualname} ({code.co_filename})"
    if not found:
        texts = {lines[each.lineno - 1].strip(): each.lineno for each in statements}
        near = difflib.get_close_matches(point.after.strip(), texts, n=3, cutoff=0.0)
        raise ConfigError(
            "\n".join([f"{said} is no line of {of}; the nearest are", *(f"  {texts[each]}: {each}" for each in near)])
        )
    chosen = [each for each in found if point.line in (None, each.lineno)]
    places = " and ".join(str(each.lineno) for each in found)
    if not chosen:
        raise ConfigError(f"{said} is not line {point.line} of {of}, but {places}")
    if len(chosen) > 1:
        raise ConfigError(f"{said} stands in lines {places} of {of}: choose one with line: {found[0].lineno}")
    if isinstance(chosen[0], _LEAVES):
        raise ConfigError(f"{said} ends what runs in {of}: nothing runs behind it; choose the line before it")
    return chosen[0]


def _texts(statement: ast.stmt, lines: list[str]) -> set[str]:
    """Return by what a statement is named: its first line, or all of it; of one with a block, what is before that."""
    block = _block(statement)
    assert statement.end_lineno is not None
    end = block[0].lineno - 1 if block else statement.end_lineno
    rows = [row.encode() for row in lines[statement.lineno - 1 : end]]
    if not block:
        rows[-1] = rows[-1][: statement.end_col_offset]
    rows[0] = rows[0][statement.col_offset :]
    return {_tokens(b"".join(some).decode()) for some in (rows[:1], rows)}


def _tokens(text: str) -> str:
    """Return code without layout and comments; of an incomplete piece, what is there."""
    found = []
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # a first line may leave brackets open
        for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
            found += [token.string] if token.type not in _LAYOUT else []
    return " ".join(found)


def _block(statement: ast.AST) -> list[ast.stmt]:
    """Return the block that a statement's first line opens, if it begins on another line."""
    body = getattr(statement, "body", None)
    is_block = isinstance(body, list) and not isinstance(statement, _APART) and body[0].lineno > statement.lineno
    return body if is_block else []


def _call(number: int, point: Point, behind: ast.stmt) -> ast.stmt:
    (made,) = ast.parse(f"try: {CALLED}({number}, lambda: 0)\nexcept NameError: pass").body
    value = next(node for node in ast.walk(made) if isinstance(node, ast.Lambda))
    value.body = ast.parse(point.value, mode="eval").body
    line = behind.lineno if _block(behind) else behind.end_lineno
    place = {"lineno": line, "end_lineno": line, "col_offset": behind.col_offset, "end_col_offset": behind.col_offset}
    for node in ast.walk(made):
        vars(node).update({name: place[name] for name in node._attributes if name in place})
    return made


def _insert(node: ast.AST, behind: Mapping[ast.stmt, list[ast.stmt]]) -> None:
    """Put statements behind others of the blocks of a node, or at the beginning of the block that it opens."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            after = [(each, behind.get(each, ()) if not _block(each) else ()) for each in block]
            block[:] = [one for each, others in after for one in (each, *others)]
    if isinstance(node, ast.stmt) and (opened := _block(node)):
        opened[:0] = behind.get(node, [])
