"""Compiles constraints in processes that can be killed."""
