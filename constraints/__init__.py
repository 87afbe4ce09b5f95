"""Constraints on text and their exact token masks. A library: it needs no server."""
