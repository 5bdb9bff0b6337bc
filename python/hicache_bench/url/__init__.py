"""The shared-prefix workload on a server that the user launched, with any hybrid model.

``facts`` reads what the server says of itself, ``advice`` what of it stands in the way of a result;
``workload`` drives it, ``report`` and ``plot`` show one run, or several beside each other.
"""
