"""Whether a comparison meets an acceptance table of `probe.comparison.noise.presets`: the verdict does not depend on it."""
