"""Programs run: traces, decoders, backtracking, distributions."""
