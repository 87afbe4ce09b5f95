"""Constraints on text and their exact token masks: a library that needs no server."""
