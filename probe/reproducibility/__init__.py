"""The same beginning on both sides: seeds, inputs, batches; and the same run with rounding added."""
