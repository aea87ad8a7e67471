"""Ways to hand a simulated node to tools that only know real files."""
