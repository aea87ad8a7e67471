"""Captures of real nodes: record one, hide what identifies it, pack it, look at it as a node.

`record`, `plan`, `children`, `scrub`, `identifiers`, `pack`, `shape`, `directory` and `recorder` run on
Python 3.9 with the standard library alone: they are the whole of ``gpusim-record.pyz``, which goes to nodes
where nothing else may be installed. The rest of this package may use the simulator.
"""
