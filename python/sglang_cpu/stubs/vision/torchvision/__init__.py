"""Stand-in for torchvision where the real one cannot load.

sglang and transformers import these names when they are imported themselves; text models call none
of them.
"""

__version__ = "0.0.0+sglang-cpu"
