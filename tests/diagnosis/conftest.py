"""Recordings of small models, as the tests of the comparison have them."""

from __future__ import annotations

from tests.verdict.conftest import clean, faulty, run

__all__ = ["clean", "faulty", "run"]
