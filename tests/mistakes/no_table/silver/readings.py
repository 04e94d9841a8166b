"""Declares nothing."""

READINGS = 1
