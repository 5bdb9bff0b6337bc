"""Workloads on a real sglang server: what its hierarchical cache finds again, tree by tree.

``python -m hicache_bench --help`` is the way in. Inside, data flows one way: a checkpoint
(``models``), a source tree (``trees``) and the sizes that the workload needs (``workload``) become
a server (``launch``, ``server``), which is driven over HTTP (``client``, ``runner``); what it
answered is judged (``results``) and shown (``report``, ``plot``).
"""
