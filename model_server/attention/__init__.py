"""Paged attention: one protocol (`base.py`), its oracle (`reference.py`) and the fast ways."""
