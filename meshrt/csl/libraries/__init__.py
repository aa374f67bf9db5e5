"""The libraries that programs import by <name>, written from their public pages."""
