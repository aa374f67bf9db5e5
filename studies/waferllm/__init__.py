"""What WaferLLM (OSDI 2025) published of the WSE-2, beside what is emulated."""
