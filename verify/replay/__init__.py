"""Failing runs as files: written, run again, made smaller."""
