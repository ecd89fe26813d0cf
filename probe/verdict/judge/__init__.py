"""What becomes of each pair of tensors, and who answers for the first that is wrong."""
