"""The health service of AMD's metrics exporter: the contract and its generated messages, nothing else."""
