"""How ranks live together and end: the host they run on, control messages, watchdog, sentinel, signals."""
