"""Paged attention: the interface (`base.py`), its oracle (`reference.py`) and the backends."""
