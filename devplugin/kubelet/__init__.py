"""Towards kubelet: one server for each resource, and what keeps it registered."""
