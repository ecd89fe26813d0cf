"""How far two tensors are apart."""
