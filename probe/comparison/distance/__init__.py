"""How far two tensors are apart, from values or from sketches."""
