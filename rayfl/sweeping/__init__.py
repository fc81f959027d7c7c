"""Many runs from one file: the grid, the processes that run it, and the table on the screen."""
