"""What recording costs on a GPU, and whether what is recorded there compares with what is recorded on a CPU."""
