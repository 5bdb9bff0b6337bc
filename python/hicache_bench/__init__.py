"""Workloads on a real sglang server: what the hierarchical cache finds again, as released and
patched.

``python -m hicache_bench --help`` is the way in. Inside, data flows one way: a checkpoint
(``models``), a source tree (``sources``) and the sizes that the workload needs (``workload``)
become a server (``launch``, ``server``), which is driven over HTTP (``client``); what it answered
is judged (``expect``) and shown (``report``, ``plot``).
"""
