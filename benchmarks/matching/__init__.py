"""How many pairs does matching find with no mapping? Model pairs with hand-made truth; `python -m benchmarks.matching`."""
