"""Constraints compiled in processes that can be killed."""
