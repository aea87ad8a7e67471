"""Ascend NPUs: what their runtime library libvnpu keeps in files and does to processes."""
