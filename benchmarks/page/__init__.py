"""What the HTML report costs in the browser: `python -m benchmarks.page`."""
