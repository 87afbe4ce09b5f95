"""Work on hostile input, in processes that can be killed, and are forked from one that is warm."""
