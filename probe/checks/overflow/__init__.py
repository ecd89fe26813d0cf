"""Overflow and underflow in one recording: `check_overflow`."""

from probe.checks.overflow.checking import Overflow, check_overflow

__all__ = ["Overflow", "check_overflow"]
