"""One step of both sides, paired: calls, events, dataflow, the history of each weight."""
