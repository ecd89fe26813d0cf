"""One step of both sides: which call, tensor and parameter is which, and what was made of what."""
