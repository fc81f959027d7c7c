"""Everything that runs where the data is: objective, trainers, evaluation, the worker. No Ray, no server."""
