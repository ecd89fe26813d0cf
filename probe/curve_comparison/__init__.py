"""Runs, not only steps: loss, gradient norm, learning rate and local norms of two trainings, step by step (docs/guide/curves.md)."""

from probe.curve_comparison.judge import curves
from probe.curve_comparison.result import CurveComparison

__all__ = ["CurveComparison", "curves"]
