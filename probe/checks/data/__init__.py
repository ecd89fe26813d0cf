"""What a recorded model was given, by itself and against another recording: `check_data`."""

from probe.checks.data.checking import Data, check_data

__all__ = ["Data", "check_data"]
