"""Many runs from one file: the grid, the processes that carry out its runs, and the table on the screen."""
