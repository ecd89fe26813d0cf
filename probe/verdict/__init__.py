"""The verdict: two recordings in, the first place where they really diverge out.

Principles: one causal graph for all phases (`steps.graph`); one noise rule (`noise.model`); reasons for more noise in
one table (`noise.terms`); direction is a reason for less; a difference that every use takes back is one of
representation (`judge.healing`); the code between the last tensors that agree and the first that does not answers
(`judge.blame`).
"""
