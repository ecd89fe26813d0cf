"""Tensors on NVIDIA and AMD devices: measured there by one compiled kernel, their values fetched without waiting."""
