"""Holds the `sitecustomize` of child processes of a replay; not to be imported."""
