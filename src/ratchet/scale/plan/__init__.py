"""Plans for machines that are not here: step time, memory and cost of a model's layouts."""
