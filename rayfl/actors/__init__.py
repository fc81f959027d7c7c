"""Ray: the cluster, actors on it, and what is done when some are lost. Nothing else imports Ray."""
