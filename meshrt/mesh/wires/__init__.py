"""Routes, tables and the fabric that moves packets."""
