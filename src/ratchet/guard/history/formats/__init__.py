"""Files with results over commits: CSV, an asv results folder, Google-benchmark JSON."""
