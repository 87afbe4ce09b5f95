"""Beam search over the holes of one client's group of beams, token by token."""
