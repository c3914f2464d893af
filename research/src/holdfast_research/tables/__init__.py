"""`holdfast table` in a clone: the papers' tables, from results and from printed rows."""
