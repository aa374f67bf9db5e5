"""`meshrt bench`: alternatives of programs side by side, and how fast the emulator itself is."""
