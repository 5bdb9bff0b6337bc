"""Keep, check, apply, test and take out a patch series on top of a pinned sglang release."""
