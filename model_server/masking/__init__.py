"""The token masks of a shard: guides by request, filled in threads while the forward runs."""
