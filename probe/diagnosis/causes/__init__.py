"""Causes that are tried on a finding, by kind."""
