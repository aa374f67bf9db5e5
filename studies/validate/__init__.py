"""Public measurements on real machines beside what the emulator says of the same work."""
