"""kubelet's device plugin API v1beta1: the contract and its generated messages, nothing else."""
