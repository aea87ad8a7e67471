"""What stands around a node: a simulated API server and a simulated kubelet on real sockets."""
