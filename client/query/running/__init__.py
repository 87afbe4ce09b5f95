"""Runs programs: traces, decoders, backtracking, distributions."""
