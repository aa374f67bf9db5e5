"""What a CSL program runs on: cores with tasks and memory in banks, routers, wavelets, virtual time."""
