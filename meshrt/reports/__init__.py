"""What was measured: a report as JSON, as tables and by the names of its numbers, and what each number is."""
