"""Engines a recipe can be exported to: one file an engine, one row a version."""
