"""LMTP, the WebSocket protocol, from the client's side."""
