"""Five models in PyTorch against the same in PaddlePaddle and MindSpore: clean pairs, and one fault at a time."""
