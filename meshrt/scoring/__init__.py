"""What a user's own program scores, for jobs and programs that search; what cheats is refused."""
