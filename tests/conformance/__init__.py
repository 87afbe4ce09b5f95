"""Tandem as the official clients of others see it, in environments of their own."""
