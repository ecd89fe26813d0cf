"""Recordings that find out by themselves where steps end, and what their losses are."""
