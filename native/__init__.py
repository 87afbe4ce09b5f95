"""C++ that several packages need, and what compiles it on first use. It knows none of them."""
