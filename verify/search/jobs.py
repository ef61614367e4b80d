"""Situations that a job itself knows of: what a rank does differently."""

FROZEN = "frozen"
"""The host function is called once, and what it queued is queued again."""
OPPOSITE = "opposite-order"
"""Ranks of odd number launch the second operator of a pair first."""
HOSTS_DIFFER = (FROZEN, OPPOSITE)
"""In these, host functions ask for other things than in a run without a situation."""
