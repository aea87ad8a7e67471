"""AMD GPUs: products, the driver as it acts on a node, and the views of its state."""
