"""What the gradient of a parameter was computed from: how large the errors of that are, and what of them cancels out."""

from __future__ import annotations

import functools
import math

from probe.comparison import tolerance
from probe.comparison.backward import BackwardWalk
from probe.comparison.step_half import Event
from probe.comparison.tolerance import Level
from probe.records import Role
from probe.statistics import unit_roundoff

_CANCELLED = 0.1
"""share of the gradients of a module's output up to which their sum has cancelled out"""
_OF_ROWS = 2
"""errors of the rows' sum, in those of the rows where all have one direction: sketches are off by less than half of it"""


class GradientSources(BackwardWalk):
    """The errors that a parameter's gradient inherits."""

    def _cancelled_in(self, event: Event, pairs: list[int]) -> float:
        """Return how many times larger a weight's gradient would be, had the terms that it is the sum of not cancelled out.

        Sums over r rows without a common direction have the norm ‖g‖·‖x‖/√r. What is left of keys' is less: softmax does not
        change if all of them move. The terms' errors stay.
        """
        a, squares = self.pairs.a, 0.0
        if len(a.shapes[event.row_a]) == 1:
            return self._cancelled_over_rows(event, pairs)
        if len(a.shapes[event.row_a]) != 2:
            return 1.0
        for (micro, module, call), node in self.pairs.nodes.items():
            if node.pair in pairs:
                key = micro, module, call
                given = [rows[0] for rows in self.pairs.rows_a.get(key, Role.INPUT).values()]
                came = [rows[0] for rows in self.pairs.rows_a.get(key, Role.GRAD_OUTPUT).values()]
                if len(given) == len(came) == 1 and a.shapes[given[0]] and a.roundoffs[given[0]]:
                    norms = a.columns["norm"][given[0]], a.columns["norm"][came[0]]
                    squares += (norms[0] * norms[1]) ** 2 / (math.prod(a.shapes[given[0]][:-1]) or 1)
        left = a.columns["norm"][event.row_a]
        return max(1.0, math.sqrt(squares) / left) if left and math.isfinite(squares) else 1.0

    def _cancelled_over_rows(self, event: Event, pairs: list[int]) -> float:
        """Return the same for a bias: its gradient is a sum over r rows, which is 0 before a normalisation.

        There the rows' errors have a common direction (that of the mean that was taken away): √r times theirs is left, at most.
        """
        a, size = self.pairs.a, math.prod(self.pairs.a.shapes[event.row_a])
        if a.columns["norm"][event.row_a] > _CANCELLED * math.hypot(*map(self._norm_that_arrived, pairs)):
            return 1.0
        modules = {self.pairs.matching.pairs[pair].a for pair in pairs}
        rows = [
            math.prod(a.shapes[row]) / (size or 1)
            for module in modules for row in self.pairs.rows_a.by_module(Role.GRAD_OUTPUT).get(module, ())
        ]  # fmt: skip
        return max(1.0, _OF_ROWS * math.sqrt(max(rows, default=1.0)) / tolerance.GRADIENT.gain)

    def _blind_sources(self, u: float) -> float:
        """Return what gradients may be off by where nothing on the way to them was compared."""
        return max(16 * u if u <= tolerance.SIXTEEN_BIT else 0.0, self.state.worst.error)

    def _beside_key(self, event: Event) -> tuple[int, int]:
        """Return what gradients that the same code passes back side by side have in common: the caller, and the size."""
        module = self.pairs.matching.pairs[event.pair].a
        return self.pairs.a.reader.modules[module].parent, math.prod(self.pairs.a.shapes[event.row_a])

    def _largest_beside(self, events: list[Event]) -> dict[tuple[int, int], float]:
        """Return the largest absolute errors that are noise of parameter gradients, by caller and size.

        As with the gradients themselves (`_limit_beside`): those of queries may be small, with the rounding of the values'.
        """
        found: dict[tuple[int, int], float] = {}
        for event in events:
            metrics, u = event.metrics, max(self.u(event), self._coarsest)
            assert metrics is not None
            if metrics.is_known and metrics.rel_l2 <= tolerance.GRADIENT.limit(u, self._blind_sources(u)):
                key, error = self._beside_key(event), metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b)
                found[key] = max(found.get(key, 0.0), error)
        return found

    def _largest_norms(self, events: list[Event]) -> dict[tuple[int, int], float]:
        """Return the largest norms of parameter gradients, by caller and size.

        They stand for the gradients that come to modules which are not called, as keys' biases in PyTorch's attention.
        """
        found: dict[tuple[int, int], float] = {}
        for event in events:
            if event.metrics is not None and math.isfinite(norm := max(event.metrics.norm_a, event.metrics.norm_b)):
                key = self._beside_key(event)
                found[key] = max(found.get(key, 0.0), norm)
        return found

    def _norm_that_arrived(self, pair: int) -> float:
        """Return the norm of all gradients at a module's outputs, whether they were compared or only recorded."""
        if pair in self._grad_norm:
            return self._grad_norm[pair]
        modules = self.pairs.matching.pairs[pair]
        return max(self._recorded_norms[0].get(modules.a, 0.0), self._recorded_norms[1].get(modules.b, 0.0))

    @functools.cached_property
    def _recorded_norms(self) -> tuple[dict[int, float], dict[int, float]]:
        """For each side, the norm of all gradients at a module's outputs, by module."""
        a, b = (
            {
                module: math.hypot(*(half.side.columns["norm"][row] for row in taken))
                for module, taken in half.rows.by_module(Role.GRAD_OUTPUT).items()
            }
            for half in self.pairs.halves
        )
        return a, b

    @functools.cached_property
    def _coarsest(self) -> float:
        """The unit roundoff of the least precise dtype that anything was computed in on either side."""
        dtypes = {
            dtype
            for side in (self.pairs.a, self.pairs.b)
            for dtype, role in zip(side.dtypes, side.columns["role"], strict=True)
            if role in (Role.OUTPUT, Role.GRAD_OUTPUT)
        }
        return max(map(unit_roundoff, dtypes), default=0.0)

    def _sources_of_gradient(self, pairs: list[int]) -> Level:
        """Return the errors of what the gradient of a parameter of these pairs of modules was computed from."""
        sources = Level()
        for levels in (self._arrived, self._inside, self._forward_of_pairs):
            sources.merge_known(levels, pairs)
        if not self._has_arrived(pairs):
            for level in self._backward.values():
                sources.merge(level)
            sources.add(0.0, self._coarsest)  # in which dtype it came is not known
        return sources

    def _has_arrived(self, pairs: list[int]) -> bool:
        """Tell whether gradients of a module's outputs were compared: not of one that is not called, whose weights others use."""
        return not self._arrived.keys().isdisjoint(pairs)

    @functools.cached_property
    def _forward_of_pairs(self) -> dict[int, Level]:
        """The errors of the forward pass, over all calls of a pair of modules."""
        found: dict[int, Level] = {}
        for node, level in self._forward.items():
            if node is not None and node not in self._rearranged:
                found.setdefault(node.pair, Level()).merge(level)
        return found
