"""What works on the pairs: training, planting, recording and judging, checks by brute force, tables and the page."""
