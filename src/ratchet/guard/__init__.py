"""Nothing gets slower or wrong: histories, comparisons, bisections, reproductions."""
