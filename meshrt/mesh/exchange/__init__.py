"""Transfers from any core to any, by software that hands packets on from core to core: `exchange`."""
