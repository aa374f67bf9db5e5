"""`meshrt tune`: the setting that answers fastest, found by emulation."""
