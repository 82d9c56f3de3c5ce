"""Many ranks: check nodes before a job starts, and untangle a job that hangs."""
