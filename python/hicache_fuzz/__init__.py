"""Random operations on the real UnifiedRadixCache, and a plain model that knows what must be found.

    scripts/fuzz --steps 10000            the tree with the whole series, every configuration
    scripts/fuzz --replay build/fuzz/failure.py

`machine` holds the operations, `watch` the rule that no state is lost for nothing, `slots` the
accounts of every pool, `contents` the bytes. Nothing here is imported by sglang.
"""
