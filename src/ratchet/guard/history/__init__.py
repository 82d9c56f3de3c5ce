"""Results over commits: series, change points, incidents, import and export."""
