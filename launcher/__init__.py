"""`launcher serve MODEL_ID`: starts the shards and the router of one model and watches them."""
