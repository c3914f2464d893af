"""Conditions that several rules share. A rule imports these, and no other rule."""
