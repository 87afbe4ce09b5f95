"""What the front speaks: HTTP and LMTP."""
