"""The vendor's programs: where they are, how they run, what their words mean."""
