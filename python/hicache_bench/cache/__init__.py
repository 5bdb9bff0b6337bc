"""Replay of workloads on the real UnifiedRadixCache, at upstream's own size, without a model.

Each source tree runs in a process of its own (``worker``), where ``engine`` drives the cache and
its pools in the scheduler's order; the other side (``driver``, ``run``) starts them, compares what
they say and shows it. Only ``contents``, ``engine``, ``meter``, ``inserts``, ``patterns``,
``scheduler`` and what imports them need torch; only ``api`` imports sglang.
"""
