"""Many ranks: the same turn on them, machines that are not here, jobs that hang."""
