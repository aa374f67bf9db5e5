"""What WaferLLM is compared with on the mesh: SUMMA, allgather, T10, Ladder."""
