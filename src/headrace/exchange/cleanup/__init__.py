"""What removes attempts that nobody needs, and what keeps it from those that somebody reads."""
