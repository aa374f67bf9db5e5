"""The commands, one a file: each has its click command as `command`, and is imported when it is asked for."""
