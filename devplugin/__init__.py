"""Kubernetes device plugins that only decide: values in, values out; `daemon` joins them to the world."""
