"""Whether two models initialise their weights alike: `check_init`."""

from probe.checks.initial.checking import Initial, check_init

__all__ = ["Initial", "check_init"]
