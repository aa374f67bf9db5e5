"""Instructions under NKI's names, and operators that are made of them."""
