"""What each rung of the noise ladder makes of clean pairs and of a small fault: the figures of docs/guide/noise.md."""
