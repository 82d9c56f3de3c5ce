"""A step made faster: workloads, their graphs, levers, recipes, and the turn that proves them."""
