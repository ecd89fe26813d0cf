"""Stands in for PaddleNLP where it can't be installed: the part of its Trainer that callbacks see."""
