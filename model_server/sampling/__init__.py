"""Sampling: from a step's logits to one token for each row, with its log-probability."""
