"""Comparing two recordings: pairs of observations, their errors, and the first that is not noise."""
