"""Questions, passages and demonstrations: files, the public sets, the World Factbook, the made-up world.

Read first: `questions.py`, `prepare.py`, `factbook/`, `world/facts.py`.
"""
