"""Hooks on the calls of modules: all of them are set or none, and copies and pickles of a module carry none."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from probe.adapters.base import Removal

T = TypeVar("T")


def all_or_none(apart: Callable[[Callable[[], None]], None], *registrations: Callable[[], Removal]) -> Removal:
    """Set hooks ``apart``, all of them or, should something interrupt, none; return what takes them off."""
    removals: list[Removal] = []

    def register() -> None:
        for each in registrations:
            removals.append(each())

    def remove() -> None:
        for removal in removals:
            removal()

    try:
        apart(register)
        return remove
    except BaseException:
        remove()
        raise


_SPACE = 1 << 20
_spaces = itertools.count(-_SPACE, -_SPACE)


def with_own_numbers(counter: type, name: str, register: Callable[[], T]) -> T:
    """Set hooks whose numbers are not counted.

    Those of the user's stand in pickles, and go on as they would without probe. ``counter`` is the class that counts
    hooks, ``name`` the attribute in which it does; ``register`` sets fewer than a million.
    """
    before = getattr(counter, name)
    setattr(counter, name, next(_spaces))
    try:
        return register()
    finally:
        setattr(counter, name, before)


class CallHook:
    """A hook that belongs to one module: in copies of it that were made past `concealed` it does nothing.

    ``module`` returns the module, as long as it lives; ``call`` is what is to be called.
    """

    def __init__(self, module: Callable[[], object], call: Callable[..., None]) -> None:
        self._module, self._call = module, call

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (nothing, nothing)


def concealed(hook: CallHook, tables: Iterable[object], register: Callable[[], Any]) -> Removal:
    """Set a hook and keep it out of pickles and copies of the tables that a module has it in, and of the lists of their values.

    Whoever loads a pickled module needs no probe, and its bytes are those that it has without probe. Frameworks
    compile the values of these tables (``torch.jit.script``) or pickle the tables, and call what their items are.
    ``register`` sets it and returns its handle; what takes it off is returned.
    """
    ordered = [table for table in tables if type(table) is OrderedDict]
    marks: list[Removal] = []

    def numbers() -> set[object]:
        return {key for table in ordered for key, value in table.items() if value is hook}

    try:
        handle = register()
        keys = numbers()
        marks += [_conceal(table, key) for table in ordered for key in keys if key in table]
    except BaseException:  # wherever it was interrupted
        for key in numbers():
            for table in ordered:
                table.pop(key, None)
                _reveal(table, key)
        raise
    return lambda: [undo() for undo in (handle.remove, *marks)]


_OWN = ("__reduce_ex__", "values")
"""what a table with hidden entries does in its own way"""


def _conceal(table: OrderedDict[Any, Any], key: object) -> Removal:
    """Let an entry of a table be in no pickle, copy or list of values; return what undoes it."""
    own, mine = vars(table), weakref.ref(table)  # no cycle: a model is freed as soon as it is let go of
    hidden = own["__reduce_ex__"].hidden if "__reduce_ex__" in own else set()
    hidden.add(key)
    own.setdefault("__reduce_ex__", _Reduction(mine, hidden))
    own.setdefault("values", _Values(mine, hidden))
    return lambda: _reveal(mine(), key)


def _reveal(table: OrderedDict[Any, Any] | None, key: object) -> None:
    own = vars(table) if table is not None else {}
    hidden = own["__reduce_ex__"].hidden if "__reduce_ex__" in own else set()
    hidden.discard(key)
    if not hidden:
        for name in _OWN:
            own.pop(name, None)


class _Shown:
    """What of a table is shown: a function of its entries but for the hidden ones."""

    def __init__(self, table: Callable[[], OrderedDict[Any, Any] | None], hidden: set[object]) -> None:
        self._table, self.hidden = table, hidden

    def shown(self) -> OrderedDict[Any, Any]:
        table = self._table()
        items = () if table is None else list(table.items())
        plain = OrderedDict((key, value) for key, value in items if key not in self.hidden)
        vars(plain).update((name, value) for name, value in vars(table or plain).items() if name not in _OWN)
        return plain


class _Reduction(_Shown):
    def __call__(self, protocol: Any) -> Any:
        return self.shown().__reduce_ex__(protocol)


class _Values(_Shown):
    def __call__(self) -> Any:
        return self.shown().values()


def nothing(*args: object) -> None:
    """Do nothing."""
    return None
