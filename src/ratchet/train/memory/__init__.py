"""Fit a step into a memory budget: measure it, plan what each block keeps, check the plan."""
