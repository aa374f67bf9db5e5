"""What `meshrt run` does for each kind of machine: a module a kind, with the options that are its own and `execute`."""
