"""Recording programs that have no line of probe: ``python -m probe.run``, and ``PROBE_RECORD`` in the environment."""
