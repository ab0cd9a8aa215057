"""The embedded checkpoints, and how they were trained."""
