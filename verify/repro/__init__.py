"""A failing run as a script for cards, without tdist."""
