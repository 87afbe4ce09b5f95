"""Who computes what, in which blocks: pure books without async, clock, I/O or text."""
