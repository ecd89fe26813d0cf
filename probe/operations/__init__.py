"""Operations inside modules: which of A is which of B, and what they were given beside tensors."""
