"""Callbacks that record what another library's trainer trains; each module imports its library when it is imported."""
