"""How the ranks of a job start: forks of one process where they outnumber the cores, and MPI, which may wait long."""
