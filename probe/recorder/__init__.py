"""What hooks see becomes records: `Recorder` is the run under way, the other modules are its parts."""

from probe.recorder.recorder import Recorder

__all__ = ["Recorder"]
