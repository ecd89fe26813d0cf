"""Answers as files, and tensors as objects of xarray."""
