"""Mixtures of experts: are faults named though rounding changes which experts tokens get, from values and with routing replayed?"""
