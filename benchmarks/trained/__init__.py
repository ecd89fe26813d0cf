"""Models with what trained ones have: does the noise of those look like a fault, and is a fault still seen in it?"""
