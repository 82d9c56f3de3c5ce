"""What every room stands on: errors, files, durations, git and processes."""
