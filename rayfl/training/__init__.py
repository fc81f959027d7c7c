"""What a client does with its data: the local objective, the trainers, evaluation. No Ray, no server."""
