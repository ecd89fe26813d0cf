"""Dumps by the real tools, installed in environments of their own: does probe name what is wrong in them, and what do the tools say?"""
