"""The search step of a mode: an operator under many schedules and situations."""
