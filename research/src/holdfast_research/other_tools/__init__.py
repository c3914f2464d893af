"""Other programs that judge logs, each run by a Python of its own: `drive_*.py` are scripts and never imported.

`feeding` is what they share.
"""
